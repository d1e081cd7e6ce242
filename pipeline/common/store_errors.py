"""Errors of stores, as their packages raise them: which may pass, and what to do about others."""

import errno
import re

CREDENTIALS = {
    "s3": "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or for a public "
    "bucket FSSPEC_S3_ANON=true",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS",
    "hf": "set HF_TOKEN",
    "https": "the server asks for a login; download the file",
}
NETWORK = re.compile(  # errors of connections that are no OSError
    r"aiohttp\..*\bClientError|botocore\..*\b(HTTPClient|EndpointConnection|ConnectTimeout)Error"
)
UNREACHED = "; check the network, and for S3 AWS_ENDPOINT_URL"
LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


def reason_of(error: Exception) -> Exception:
    """What fsspec hides behind 'not found' when a web server cannot be reached."""
    cause = error.__cause__
    hidden = isinstance(error, FileNotFoundError) and isinstance(cause, Exception)
    return cause if hidden and type(cause).__module__.startswith("aiohttp") else error  # type: ignore[return-value]


def _status(error: Exception) -> int | None:
    """The status of an HTTP answer, as the packages' errors name it."""
    places = ((error, "status"), (getattr(error, "response", None), "status_code"), (error, "code"))
    found = (getattr(holder, name, None) for holder, name in places)
    return next((status for status in found if isinstance(status, int)), None)


def is_passing(error: Exception) -> bool:
    """Whether the same request may be answered a little later."""
    if (status := _status(error)) is not None:
        return status in (408, 425, 429) or status >= 500
    if isinstance(error, LASTING) or hasattr(error, "certificate_error"):
        return False
    return isinstance(error, OSError | EOFError | TimeoutError) or _is_of_network(error)


def _is_of_network(error: Exception) -> bool:
    return any(NETWORK.match(f"{one.__module__}.{one.__name__}") for one in type(error).__mro__)


def explained(path: str, protocol: str, error: Exception, attempts: int) -> OSError:
    """The error that names the file, what is wrong and what to do, after so many attempts."""
    status = _status(error)
    refused = status in (401, 403) or re.search("Credentials|Profile", type(error).__name__)
    if isinstance(error, PermissionError) or refused:
        what = f"no access ({text_of(error)}); {CREDENTIALS[protocol]}"
        return PermissionError(errno.EACCES, what, path)
    if isinstance(error, FileNotFoundError) or status == 404:
        what = str(error) if "bucket" in str(error) else "not there"
        return FileNotFoundError(errno.ENOENT, what, path)
    tried = f" (tried {attempts} times)" if attempts > 1 else ""
    tried += UNREACHED * _is_of_network(error)
    return OSError(errno.EIO, f"{text_of(error)}{tried}", path)


def text_of(error: Exception) -> str:
    """An error in one line; some have no text."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return re.sub(r"\s+", " ", text)
