"""URLs of the Azure Blob store: what they mean, where the credential comes from, what is shown."""

from __future__ import annotations

import pytest

from leasehold.azure.blob_store.address import BlobAddress
from leasehold.errors import InvalidUrl

KEY, SAS = "c2VjcmV0LWtleQ==", "sv=2021&sig=top%2Fsecret"
CONNECTION = f"DefaultEndpointsProtocol=https;AccountName=acme;AccountKey={KEY};"


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "root", "container", "prefix"),
    [
        ("azure-blob://acme/c01", "acme.blob.core.windows.net", None, True, "", "c01", ""),
        ("azure-blob://acme/c01/a/b", "acme.blob.core.windows.net", None, True, "", "c01", "a/b"),
        ("azure-blob://acme.blob.x.cn/c01", "acme.blob.x.cn", None, True, "", "c01", ""),
        ("azure-blob://127.0.0.1:1/acme/c01?tls=0", "127.0.0.1", 1, False, "/acme", "c01", ""),
        ("azure-blob://localhost/acme/c01/p", "localhost", None, True, "/acme", "c01", "p"),
        ("azure-blob://host:443/acme/c01", "host", 443, True, "/acme", "c01", ""),
    ],
)
def test_a_url_is_read_and_shown_again(
    url: str, host: str, port: int | None, tls: bool, root: str, container: str, prefix: str
) -> None:
    found = BlobAddress.of(url, {})
    assert (found.account, found.host, found.port) == ("acme", host, port)
    assert (found.tls, found.root) == (tls, root)
    assert (found.container, found.prefix) == (container, prefix)
    assert found.url == url
    assert (found.key, found.sas) == ("", "")


@pytest.mark.parametrize(
    "url",
    [
        "azure-blob://",
        "azure-blob://acme",
        "azure-blob://acme/",
        "azure-blob://ACME!/c01",
        "azure-blob://acme/Container",
        "azure-blob://acme/c01/a//b",
        "azure-blob://acme/c01/..",
        "azure-blob://user:pw@acme/c01",
        "azure-blob://acme/c01?key=abc",
        "azure-blob://acme/c01?tls=no",
        "azure-blob://acme:port/c01",
        "azure-blob://[::1/c01",
        "azure-blob://acme/c01/" + "x" * 300,
    ],
)
def test_what_can_not_be_read_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(InvalidUrl, match="azure-blob://ACCOUNT/CONTAINER") as caught:
        BlobAddress.of(url, {})
    assert "pw" not in str(caught.value)
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "environment", "key", "sas"),
    [
        (
            f"azure-blob://acme/c01?sas={SAS.replace('&', '%26').replace('%2F', '%252F')}",
            {},
            "",
            SAS,
        ),
        ("azure-blob://acme/c01", {"AZURE_STORAGE_SAS_TOKEN": f"?{SAS}"}, "", SAS),
        ("azure-blob://acme/c01", {"AZURE_STORAGE_KEY": KEY}, KEY, ""),
        ("azure-blob://acme/c01", {"AZURE_STORAGE_CONNECTION_STRING": CONNECTION}, KEY, ""),
        ("azure-blob://other/c01", {"AZURE_STORAGE_CONNECTION_STRING": CONNECTION}, "", ""),
        (
            "azure-blob://acme/c01",
            {"AZURE_STORAGE_CONNECTION_STRING": f"BlobEndpoint=https://notacme.x;AccountKey={KEY}"},
            "",
            "",
        ),
        (
            "azure-blob://acme/c01",
            {
                "AZURE_STORAGE_CONNECTION_STRING": "BlobEndpoint=https://acme.blob.core.windows.net"
                f";SharedAccessSignature={SAS}"
            },
            "",
            SAS,
        ),
    ],
)
def test_the_right_comes_from_the_url_or_the_environment(
    url: str, environment: dict[str, str], key: str, sas: str
) -> None:
    found = BlobAddress.of(url, environment)
    assert (found.key, found.sas) == (key, sas)
    assert found.url == url.partition("?")[0]
    for secret in (KEY, SAS, "top"):
        assert secret not in found.url + repr(found)


def test_the_endpoint_of_a_connection_string_counts() -> None:
    text = f"{CONNECTION}BlobEndpoint=http://127.0.0.1:10000/acme"
    found = BlobAddress.of("azure-blob://acme/c01", {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert (found.host, found.port, found.tls, found.root) == ("127.0.0.1", 10000, False, "/acme")
    assert found.path("groups/a=2Fb/book") == "/acme/c01/groups/a=2Fb/book"


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:port/acme", "http://[::1/acme"])
def test_an_endpoint_that_is_no_url_is_told_without_the_key(endpoint: str) -> None:
    text = f"{CONNECTION}BlobEndpoint={endpoint}"
    with pytest.raises(InvalidUrl, match="copy the connection string again") as caught:
        BlobAddress.of("azure-blob://acme/c01", {"AZURE_STORAGE_CONNECTION_STRING": text})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("azure-blob://acme/Bad_Name", "'Bad_Name' is no name for the container (3 to 63 small"),
        ("azure-blob://acme/a--b", "'a--b' is no name for the container (3 to 63 small"),
        ("azure-blob://ac_me/c01", "'ac_me' is no name for the account (3 to 24 small"),
        ("azure-blob://127.0.0.1:1/Acme/c01", "'Acme' is no name for the account"),
        ("azure-blob://acme", "it names no container (3 to 63 small"),
        (f"azure-blob://acme/c01%3F{SAS}", "what it has for the container is no name (3 to 63"),
        (f"azure-blob://acme/{'A' * 86}==", "what it has for the container is no name (3 to 63"),
    ],
)
def test_the_part_that_is_wrong_is_told_and_what_it_may_be(url: str, said: str) -> None:
    with pytest.raises(InvalidUrl, match=r"azure-blob://ACCOUNT/CONTAINER$") as caught:
        BlobAddress.of(url, {})
    assert said in str(caught.value)
    assert "emulator" not in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "AAAA" not in str(caught.value)
