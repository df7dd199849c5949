"""Settings: read once from the environment (``CINESTRATA_…``), typed, checked, then frozen."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from index.milvus.milvus_address import MilvusIndex, without_password
from index.scanning.search_options import EXACT_ROWS, Device
from models.backbones.compute_options import Precision
from models.routing.defaults import DEFAULT_PRIOR
from service.core.method_names import METHOD_NAMES

__all__ = ["QueryMode", "Settings", "settings"]

QueryMode = Literal["pinned", "mapped", "latest"]  # best first

_MIB = 1024**2
_GIB = 1024**3


class Settings(BaseSettings):
    """Everything that differs between a laptop and a cluster.

    ``database_url`` and ``redis_url`` are always filled: without a value they point into ``data_dir``.
    """

    model_config = SettingsConfigDict(
        env_prefix="CINESTRATA_", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    # where things are
    data_dir: Path = Path("cinestrata-data")
    media_root: Path = Path()  # videos may be named by path below this folder; default data_dir/media
    database_url: str = ""  # sqlite:///… or postgresql://…; default data_dir/catalog.sqlite3
    redis_url: str = ""  # redis://… or redis+socket://…; default the private server in data_dir/run

    # how it is reached
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    api_key: SecretStr | None = None

    # where vectors live: faiss: files in data_dir; milvus: a server. What is in the other one is still searched.
    vector_store: Literal["faiss", "milvus"] = "faiss"
    # http://host:19530; a path that ends in .db is milvus-lite, for one process at a time
    milvus_uri: str = Field(default="", repr=False)
    milvus_token: SecretStr | None = None  # user:password, or an API key
    # first part of the names of the collections; libraries that share a server need different ones
    milvus_collection: str = Field(default="cinestrata", pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$")
    milvus_index: MilvusIndex = "FLAT"  # exact; measure the recall of the others with text queries first
    milvus_loaded: int | None = Field(
        default=None, ge=1
    )  # tasks in its memory at once; default: all searched
    milvus_seconds: float = Field(default=10, gt=0)  # until an answer is given up

    # how it searches
    # of the text tower: bfloat16 is half again as fast where the hardware multiplies it, and moves a cosine by up to a
    # thousandth, which depends on what else is encoded at that moment
    query_precision: Precision = "float32"
    query_device: Device = (
        "cpu"  # of the text tower, and of clips that are searched with; auto: a GPU if there is one
    )
    open_bytes: int | None = Field(default=None, ge=0)  # of shards that stay mapped; default: all of them
    index_device: Device = "cpu"  # auto: a GPU if there is one
    # a shard of more rows gets a search structure if it passes the recall gate
    exact_rows: int = Field(default=EXACT_ROWS, ge=0)

    # how it learns
    backbone: str = "tiny"
    frames: int | None = Field(default=None, ge=1, le=256)  # per video; default: the backbone's
    method: str = "strata"
    # a longer video is found by its moments, too: windows of at most so many seconds, each of which shares so much of
    # its length with the next
    moment_seconds: float = Field(default=20, ge=1)
    moment_overlap: float = Field(default=0.5, ge=0, le=0.9)
    query_mode: QueryMode = "pinned"
    # served: a release is measured as the service searches with it; all: in every mode that it offers, to compare them,
    # which takes longer with every task
    measured_modes: Literal["served", "all"] = "served"
    # cosine per nat of routing evidence; 0 merges raw cosines
    routing_prior: Annotated[float, Field(ge=0, le=1)] = DEFAULT_PRIOR
    # which tasks a query goes to: those that can matter (auto), all, or how many of the likeliest; see service.search.text_search.planner
    routes: Literal["auto", "all"] | Annotated[int, Field(ge=1)] = "auto"
    torch_threads: int | None = Field(default=None, ge=1)
    held_out_share: float = Field(default=0.2, ge=0, lt=1)  # where no test split is given
    # kept from training where no val split is given, to tell how sure searches are
    calibration_share: float = Field(default=0.05, ge=0, lt=0.5)
    bad_video_share: float = Field(default=0.2, ge=0, le=1)  # a task with a larger share of bad videos fails

    # file in which a worker writes its health every few seconds, for the probes of containers
    health_file: Path | None = None

    # how work is handed over
    lease_seconds: float = Field(default=60, gt=0)  # a worker that is silent for this long is taken for dead
    stall_seconds: float = Field(default=900, gt=0)  # without progress its lease runs out
    max_attempts: int = Field(default=3, ge=1)  # without progress in between
    reconcile_seconds: float = Field(default=5, gt=0)
    visibility_seconds: int = Field(default=12 * 3600, ge=60)  # until Redis repeats a message
    event_seconds: float = Field(default=0.5, ge=0)  # at most one progress event of a task in this time
    idempotency_hours: float = Field(default=24, gt=0)
    busy_seconds: float = Field(default=30, gt=0)  # how long a writer waits for the SQLite lock

    # how much is too much
    max_results: int = Field(default=100, ge=1)
    max_depth: int = Field(default=10_000, ge=1)  # results of one search, over all its pages
    max_query_chars: int = Field(default=1000, ge=1)
    max_queries: int = Field(default=256, ge=1)  # of one batch
    max_waiting: int = Field(
        default=512, ge=1
    )  # texts that are answered or waited for at a time, in one process
    max_caption_chars: int = Field(default=2000, ge=1)
    max_captions: int = Field(default=64, ge=1)  # per video
    max_videos_per_task: int = Field(default=20_000, ge=1)
    max_settings_bytes: int = Field(default=4096, ge=2)  # of a task, as JSON
    max_metadata_bytes: int = Field(default=16_384, ge=2)  # of a video, as JSON
    max_moments: int = Field(default=512, ge=0, le=65_536)  # of a video, as far as ids go; 0: none
    max_video_bytes: int = Field(default=4 * _GIB, ge=1)
    max_upload_bytes: int = Field(default=4 * _GIB, ge=1)
    max_clip_bytes: int = Field(default=256 * _MIB, ge=1)  # of a clip or picture to search with
    max_clip_seconds: float = Field(default=30, gt=0)  # of decoding it
    max_archive_files: int = Field(default=20_001, ge=1)
    max_unpacked_bytes: int = Field(default=16 * _GIB, ge=1)

    # how it reports
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    @field_validator("method")
    @classmethod
    def _known_method(cls, value: str) -> str:
        if value not in METHOD_NAMES:
            raise ValueError(f"unknown method {value!r}; choose one of {', '.join(METHOD_NAMES)}")
        return value

    @field_validator("api_key", "milvus_token")
    @classmethod
    def _real_key(cls, value: SecretStr | None) -> SecretStr | None:
        # An empty variable means "no key", which is what a compose file passes on for an unset one.
        return value if value and value.get_secret_value() else None

    @model_validator(mode="before")
    @classmethod
    def _fill_places(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        data = Path(values.get("data_dir") or cls.model_fields["data_dir"].default).expanduser().resolve()
        media = values.get("media_root")
        return {
            **values,
            "data_dir": data,
            "media_root": Path(media).expanduser().resolve() if media else data / "media",
            "database_url": _with_driver(
                values.get("database_url") or f"sqlite:///{data / 'catalog.sqlite3'}"
            ),
            "redis_url": values.get("redis_url") or f"redis+socket://{data / 'run' / 'redis.sock'}",
        }

    @model_validator(mode="after")
    def _milvus_can_be_used(self) -> Settings:
        if self.vector_store == "milvus" and not self.milvus_uri:
            raise ValueError(
                "CINESTRATA_VECTOR_STORE is milvus, and CINESTRATA_MILVUS_URI is empty: set it, for example to "
                "http://milvus:19530"
            )
        if self.milvus_token and not self.milvus_uri:
            raise ValueError("CINESTRATA_MILVUS_TOKEN is set, and CINESTRATA_MILVUS_URI is empty: set it too")
        if not self.milvus_uri:
            return self
        local = self.milvus_uri.endswith(".db")
        if not local and not self.milvus_uri.startswith(("http://", "https://", "tcp://", "unix:")):
            raise ValueError(
                f"CINESTRATA_MILVUS_URI {without_password(self.milvus_uri)!r} is no address: use http://host:19530, "
                "or a file that ends in .db"
            )
        if find_spec("pymilvus") is None:
            raise ValueError("CINESTRATA_MILVUS_URI needs Milvus' client: pip install 'cinestrata[milvus]'")
        if local and find_spec("milvus_lite") is None:
            raise ValueError(
                "CINESTRATA_MILVUS_URI is a .db file, which needs milvus-lite: pip install milvus-lite"
            )
        return self

    @property
    def index_dir(self) -> Path:
        """Shards, releases and their manifest."""
        return self.data_dir / "index"

    @property
    def cache_dir(self) -> Path:
        """Sampled frames; may be deleted at any time."""
        return self.data_dir / "cache" / "frames"

    @property
    def checkpoints_dir(self) -> Path:
        """A folder for each task that is being learned."""
        return self.data_dir / "checkpoints"

    @property
    def thumbnails_dir(self) -> Path:
        """``<video id>.jpg``."""
        return self.data_dir / "thumbnails"

    @property
    def uploads_dir(self) -> Path:
        """Unpacked archives, a folder for each task."""
        return self.data_dir / "media" / "uploads"

    @property
    def run_dir(self) -> Path:
        """Socket, lock and logs of the running processes."""
        return self.data_dir / "run"

    @property
    def redis_client_url(self) -> str:
        """The broker's address as a plain Redis client writes it (``unix://`` instead of ``redis+socket://``)."""
        return self.redis_url.replace("redis+socket://", "unix://", 1)

    def served_mode(self, offered: Collection[str]) -> QueryMode:
        """The mode in which a release that offers these is searched: the configured one, or the best of them."""
        modes: tuple[QueryMode, ...] = get_args(QueryMode)
        return next(mode for mode in (self.query_mode, *modes) if mode in offered)


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process. Raises pydantic's ``ValidationError`` naming each wrong variable."""
    return Settings()


def _with_driver(url: str) -> str:
    # psycopg 3 is the driver we ship; a plain postgresql:// would make SQLAlchemy look for another one.
    for plain in ("postgresql://", "postgres://"):
        if url.startswith(plain):
            return "postgresql+psycopg://" + url.removeprefix(plain)
    return url
