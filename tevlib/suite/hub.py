"""What the model hub and its cache on this machine have of a model; asked with a short patience, never a traceback."""

import json
import os
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tevlib.suite.cells import is_hub_id
from tevlib.suite.paths import from_repository
from tevlib.suite.sizes import download_bytes

PATIENCE_S = 3.0
GATED = ("meta-llama", "google")  # owners whose models ask for a licence, where the hub cannot be asked


@dataclass(frozen=True)
class HubFacts:
    """Bytes to download (None: unknown), whether that is the hub's own number, whether gated, or what is wrong."""

    size: int | None = None
    exact: bool = False
    gated: bool = False
    error: str = ""


@dataclass
class Hub:
    """The hub as seen from here: `online`, in words `state`, the cache's `folder`, whether there is a `token`."""

    online: bool
    state: str
    folder: Path
    token: bool
    asked: dict[str, HubFacts] = field(default_factory=dict)

    @classmethod
    def reached(cls) -> "Hub":
        """The hub, after one attempt to open a connection to it (none where HF_HUB_OFFLINE is set)."""
        from huggingface_hub import constants, get_token

        online, state = False, "off, by HF_HUB_OFFLINE"
        if not constants.is_offline_mode():
            online, state = _connects(constants.ENDPOINT)
        return cls(online, state, Path(constants.HF_HUB_CACHE), bool(get_token()))

    def cached(self, name: str) -> bool:
        """Whether a model's configuration and weights are in the cache."""
        folder = self._snapshot(name)
        return folder is not None and any(folder.glob("*.safetensors"))

    def configuration(self, name: str) -> dict | None:
        """A model's `config.json`, from its folder or the cache; None where it is not on this machine."""
        local = from_repository(name)
        folder = local if local.is_dir() else self._snapshot(name)
        if folder is None or not (folder / "config.json").is_file():
            return None
        return json.loads((folder / "config.json").read_text(encoding="utf-8"))

    def facts(self, name: str) -> HubFacts:
        """What is known of a model that is not here: from the hub itself, else by its name."""
        if name not in self.asked:
            self.asked[name] = self._ask(name) if self.online else _by_name(name)
        return self.asked[name]

    def _snapshot(self, name: str) -> Path | None:
        from huggingface_hub import try_to_load_from_cache

        if not is_hub_id(name):
            return None
        found = try_to_load_from_cache(name, "config.json", cache_dir=self.folder)
        return Path(found).parent if isinstance(found, str) else None

    def _ask(self, name: str) -> HubFacts:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

        try:
            info = HfApi().model_info(name, files_metadata=True, timeout=PATIENCE_S)
        except GatedRepoError:
            return HubFacts(gated=True)
        except RepositoryNotFoundError:
            return HubFacts(error="the hub has no such model, or not for this token")
        except Exception as error:  # its client raises many unrelated types; the message matters here
            return HubFacts(error=f"the hub did not answer: {str(error).splitlines()[0]}")
        sizes = [file.size or 0 for file in info.siblings or [] if file.rfilename.endswith(".safetensors")]
        return HubFacts(sum(sizes) or None, True, bool(info.gated))


def _by_name(name: str) -> HubFacts:
    """A guess from a model's name and its owner."""
    return HubFacts(download_bytes(name), False, name.split("/")[0] in GATED)


def _connects(endpoint: str) -> tuple[bool, str]:
    """Whether a connection to the hub, or to the proxy before it, opens within `PATIENCE_S`; and that in words."""
    parts = urlsplit(endpoint)
    proxy = os.environ.get(f"{parts.scheme}_proxy") or os.environ.get(f"{parts.scheme.upper()}_PROXY")
    if proxy:
        parts = urlsplit(proxy)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    answer = [(False, f"cannot be reached from here (no answer in {PATIENCE_S:g} s)")]

    def attempt() -> None:
        try:
            socket.create_connection((parts.hostname, port), PATIENCE_S).close()
            answer.append((True, "can be reached"))
        except OSError as error:
            answer.append((False, f"cannot be reached from here ({error})"))

    looking = threading.Thread(target=attempt, daemon=True)  # a name server may take longer than any time-out
    looking.start()
    looking.join(PATIENCE_S)
    return answer[-1]
