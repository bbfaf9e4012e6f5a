"""Where the server is: a URL as libpq knows it, and what of it may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from leasehold.errors import InvalidUrl

_CONNECT_LIMIT_S = 3
_EXAMPLES = "postgresql://user@host:5432/database or postgresql://user@/database?host=/socket/dir"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseAddress:
    """One database. ``conninfo`` is for the driver alone: it may hold a password."""

    conninfo: str = field(repr=False)
    url: str
    where: str

    @classmethod
    def of(cls, url: str) -> DatabaseAddress:
        """What the URL says, completed by our own settings where it says nothing.

        Raises:
            InvalidUrl: libpq does not understand the URL. Its words are left out, because
                they may quote a part of the password.
        """
        try:
            given = {key: str(value) for key, value in conninfo_to_dict(url).items()}
            own = {"application_name": "leasehold", "connect_timeout": str(_CONNECT_LIMIT_S)}
            conninfo = make_conninfo(**own | given)
        except psycopg.Error:
            raise _unreadable() from None
        # A password with a slash in it that was not quoted is taken for a port, one with an @ for
        # a part of the host.
        if not given.get("port", "0").replace(",", "").isdecimal() or "@" in given.get("host", ""):
            raise _unreadable()
        return cls(conninfo=conninfo, url=_shown(given), where=_where(given))


def _unreadable() -> InvalidUrl:
    return InvalidUrl(
        f"the PostgreSQL URL can not be read: write {_EXAMPLES}, %-quote what is special in "
        "user and password (%40 for @, %2F for /), and use only options that libpq knows"
    )


def _shown(given: dict[str, str]) -> str:
    """A URL made of the harmless parts only: what is not known to be harmless is left out."""
    user, host, port = (given.get(part, "") for part in ("user", "host", "port"))
    at = f"{quote(user, safe='')}@" if user else ""
    database = quote(given.get("dbname", ""), safe="")
    if host and not set(host) & set("/,@:"):
        return f"postgresql://{at}{host}{':' if port else ''}{port}/{database}"
    rest = "&".join(
        f"{part}={quote(value, safe='/,')}"
        for part, value in (("host", host), ("port", port))
        if value
    )
    return f"postgresql://{at}/{database}{'?' if rest else ''}{rest}"


def _where(given: dict[str, str]) -> str:
    host = given.get("host") or given.get("hostaddr") or "the default host"
    port = f":{given['port']}" if "port" in given else ""
    database = given.get("dbname") or given.get("user") or "of the user's own name"
    return f"{host}{port}, database {database}"
