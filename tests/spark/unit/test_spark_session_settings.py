"""What a session says to Java, without a Java."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.conf import SparkConf

from leasehold.spark.sessions import (
    _ARROW_OPTION,
    _UNSAFE_ACCESS,
    _add_java_option,
    _defaults,
    _prepare_environment,
    configured_master,
)

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.mark.parametrize(
    ("options", "then"),
    [
        ("", _ARROW_OPTION),
        ("-Xss8m", f"-Xss8m {_ARROW_OPTION}"),
        (f"-D{_UNSAFE_ACCESS}=false -Xss8m", f"-D{_UNSAFE_ACCESS}=false -Xss8m"),
    ],
)
def test_an_option_is_added_to_those_of_the_program_unless_it_has_a_word_on_it(
    options: str, then: str
) -> None:
    conf = SparkConf(loadDefaults=False).set(OPTIONS, options)

    _add_java_option(conf, _ARROW_OPTION, unless=_UNSAFE_ACCESS)

    assert conf.get(OPTIONS) == then


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077", "yarn"])
def test_executors_read_arrow_as_the_driver_does(master: str) -> None:
    assert _defaults(master)["spark.executor.extraJavaOptions"] == _ARROW_OPTION


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """The variables of a machine where nobody has said anything to Spark."""
    for name in ("SPARK_LOCAL_IP", "PYSPARK_SUBMIT_ARGS", "MASTER", "SPARK_HOME"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setattr("leasehold.spark.sessions.java_home", lambda: tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return monkeypatch


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("master", ["", "local", "local[2]", "local[*,3]"])
def test_a_local_session_stays_on_the_loopback(master: str) -> None:
    _prepare_environment(master)
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("master", ["spark://h:7077", "yarn", "k8s://h", "local-cluster[2,1,512]"])
def test_a_driver_with_executors_elsewhere_is_not_bound_to_the_loopback(master: str) -> None:
    _prepare_environment(master)
    assert "SPARK_LOCAL_IP" not in os.environ


def test_an_address_that_somebody_gave_stays(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    _prepare_environment("local[2]")
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.7"


def test_a_master_that_others_name_counts_too(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("PYSPARK_SUBMIT_ARGS", "--master yarn pyspark-shell")
    _prepare_environment("")
    assert "SPARK_LOCAL_IP" not in os.environ
    _prepare_environment("local[2]")
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "master"),
    [
        ("", "spark://file:1"),
        ("--master yarn pyspark-shell", "yarn"),
        ("--master=yarn pyspark-shell", "yarn"),
        ("--conf spark.master=yarn --conf spark.a=b pyspark-shell", "yarn"),
        ("-c spark.master=k8s://h --master yarn pyspark-shell", "yarn"),
        ("--name 'a b' pyspark-shell", "spark://file:1"),
        ("--name 'a", "spark://file:1"),
        ("--properties-file OTHER pyspark-shell", "spark://other:1"),
        ("--master", "spark://file:1"),
    ],
)
def test_the_master_is_found_as_spark_finds_it(tmp_path: Path, arguments: str, master: str) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# spark.master x\nspark.master  spark://file:1\n"
    )
    other = tmp_path / "other.conf"
    other.write_text("spark.master=spark://other:1\nspark.masterly y\n")
    options = {
        "PYSPARK_SUBMIT_ARGS": arguments.replace("OTHER", str(other)),
        "SPARK_CONF_DIR": str(tmp_path),
        "MASTER": "spark://variable:1",
    }
    assert configured_master(options) == master


def test_without_any_word_there_is_no_master(tmp_path: Path) -> None:
    assert configured_master({"SPARK_CONF_DIR": str(tmp_path)}) == ""
    assert configured_master({"SPARK_HOME": str(tmp_path), "MASTER": "yarn"}) == "yarn"
