"""Behind a proxy with a path prefix: whether or not the proxy removes it, all addresses in answers have the prefix."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr

from api.app import create_app
from service.core.settings import Settings
from tests.api.conftest import BASE_URL

ROOT = "/apps/clips"
TUS = {"Tus-Resumable": "1.0.0", "Upload-Length": "3"}
ADDRESS = re.compile(r'(?:href|src|action)="([^"#]*)')


@pytest.fixture(scope="module", autouse=True)
def root_path() -> Iterator[None]:
    """The setting that names the prefix, for the settings of this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CINESTRATA_ROOT_PATH", f"{ROOT}/")
        yield


@pytest.fixture(params=["", ROOT], ids=["removed", "kept"])
def forwarded(request: pytest.FixtureRequest) -> str:
    """What the proxy leaves of the prefix."""
    return str(request.param)


@pytest.mark.parametrize(
    "page", ["/", "/admin", "/domains/x", "/watch/x", "/login", "/docs", "/access", "/unknown"]
)
def test_all_addresses_of_a_page_have_the_prefix(client: TestClient, forwarded: str, page: str) -> None:
    answer = client.get(
        f"{forwarded}{page}", headers={"Accept": "text/html", "X-Forwarded-Prefix": "//evil.example"}
    )
    assert answer.status_code == (404 if page == "/unknown" else 200)
    addresses = ADDRESS.findall(answer.text)
    assert addresses
    assert [address for address in addresses if address and not address.startswith(f"{ROOT}/")] == []
    assert "evil" not in answer.text
    assets = {address for address in addresses if "/static/" in address}
    assert [asset for asset in assets if client.get(asset).status_code != 200] == []


@pytest.mark.parametrize("version", ["", "/v1"])
def test_headers_keep_both_prefixes(
    client: TestClient, library: list[str], forwarded: str, version: str
) -> None:
    location = client.post(f"{forwarded}{version}/uploads", headers=TUS).headers["location"]
    assert location.startswith(f"{ROOT}{version}/uploads/upl_")
    assert client.head(location, headers=TUS).status_code == 200
    page = client.get(f"{ROOT}{version}/tasks", params={"limit": 1})
    following = page.url.join(page.links["next"]["url"])
    assert following.path == f"{ROOT}{version}/tasks"
    assert client.get(following).json() != page.json()
    unknown = client.get(f"{forwarded}{version}/tasks/x").json()
    assert unknown["instance"] == f"{ROOT}{version}/tasks/x"


def test_sign_in_stays_below_the_prefix(configured: Settings, forwarded: str) -> None:
    secured = configured.model_copy(update={"api_key": SecretStr("s3cret")})
    browser = TestClient(create_app(secured), base_url=BASE_URL, follow_redirects=False)
    assert browser.get(f"{forwarded}/").headers["location"] == f"{ROOT}/login"
    asked = browser.get(f"{forwarded}/admin?into=x").headers["location"]
    assert asked == f"{ROOT}/login?next={ROOT}/admin%3Finto%3Dx"
    assert f'name="next" value="{ROOT}/admin?into=x"' in browser.get(asked).text
    for given, shown in (
        (f"{ROOT}/admin?into=x", f"{ROOT}/admin?into=x"),
        ("/admin", f"{ROOT}/"),  # of another service on the host
        (f"//evil.example{ROOT}/", f"{ROOT}/"),
        ("", f"{ROOT}/"),
    ):
        signed_in = browser.post(f"{forwarded}/login", data={"key": "s3cret", "next": given})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, shown)
        cookie = signed_in.headers["set-cookie"]
        assert cookie.startswith(
            "cinestrata_session.apps.clips="
        )  # another service on the host keeps its own
        assert "Path=/;" in cookie
    assert browser.get(f"{forwarded}/admin").status_code == 200
    assert browser.post(f"{forwarded}/logout").headers["location"] == f"{ROOT}/login"
    assert browser.get(f"{forwarded}/admin").status_code == 303


def test_paths_outside_the_service_are_not_found(client: TestClient) -> None:
    for path in ("/apps", "/apps/clips2/admin", f"{ROOT}{ROOT}/", f"{ROOT}/v1/admin", f"{ROOT}/v1/v1/tasks"):
        answer = client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")


@pytest.mark.parametrize("value", ["/videos", "/v1/clips", "/static", "/login/x", "/mcp"])
def test_prefix_that_is_a_path_of_the_service_is_refused(configured: Settings, value: str) -> None:
    with pytest.raises(ValueError, match=f"CINESTRATA_ROOT_PATH={value} is a path of the service itself"):
        create_app(configured.model_copy(update={"root_path": value}))
