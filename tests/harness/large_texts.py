"""Large texts for parsers: a valid text in which one piece is repeated."""

from __future__ import annotations

from hypothesis import strategies as st

#: Separators, numbers and characters with a meaning in some syntax.
PIECES = (
    *("", " ", ",", ":", "=", ".", "-", "+", "%", "e9", "\0", "\n", "é", "٣", "NaN", "-1", "[{"),
    *("1", "a", "*", "(", "]", "}", "/", "\t", '"', "'", "\\", "\\u", '""', "[[a]]\n", "{a=", "a."),
    *(
        "1s",
        "a=1,",
        "0:0.0,",
        "GPU-",
        "[a]\n",
        "#\n",
        '"".',
        "1m/",
        "08:00-18:00,",
        "0-999,",
        "%2f",
        "&a=1",
    ),
)
pieces = st.sampled_from(PIECES) | st.text(min_size=1, max_size=4)


@st.composite
def large(draw: st.DrawFn, valid: tuple[str, ...], size: int) -> str:
    """Draw a text of at most ``size`` bytes more than a valid one."""
    text, piece = draw(st.sampled_from(valid)), draw(pieces)
    at = draw(st.integers(0, len(text)))
    length = max(1, len(piece.encode(errors="replace")))
    return text[:at] + piece * (size // length) + text[at:]
