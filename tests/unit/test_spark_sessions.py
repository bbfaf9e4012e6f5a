"""What a session says to Java, without a Java."""

from __future__ import annotations

import pytest
from pyspark.conf import SparkConf

from leasehold.spark.sessions import _ARROW, _UNCHECKED, _add, _defaults

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("told", "then"),
    [
        ("", _ARROW),
        ("-Xss8m", f"-Xss8m {_ARROW}"),
        (f"-D{_UNCHECKED}=false -Xss8m", f"-D{_UNCHECKED}=false -Xss8m"),
    ],
)
def test_an_option_is_added_to_those_of_the_program_unless_it_has_a_word_on_it(
    told: str, then: str
) -> None:
    conf = SparkConf(loadDefaults=False).set(OPTIONS, told)

    _add(conf, _ARROW, unless=_UNCHECKED)

    assert conf.get(OPTIONS) == then


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
def test_executors_read_arrow_as_the_driver_does(master: str) -> None:
    assert _defaults(master)["spark.executor.extraJavaOptions"] == _ARROW
