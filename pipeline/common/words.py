"""Words as ROUGE counts them, and stopwords."""

# Everything but rouge-score's letters and digits separates words.
SEPARATED = bytes(i if chr(i) in "abcdefghijklmnopqrstuvwxyz0123456789" else 32 for i in range(256))

# NLTK's English list of 127 words (gist.github.com/sebleier/554280), which LongT5's pre-training
# code uses.
STOPWORDS = frozenset(
    b"""
    i me my myself we our ours ourselves you your yours yourself yourselves he him his himself she
    her hers herself it its itself they them their theirs themselves what which who whom this that
    these those am is are was were be been being have has had having do does did doing a an the and
    but if or because as until while of at by for with about against between into through during
    before after above below to from up down in out on off over under again further then once here
    there when where why how all any both each few more most other some such no nor not only own
    same so than too very s t can will just don should now
    """.split()
)

Words = list[bytes]


def rouge_words(text: str) -> Words:
    """Words as in rouge-score without its stemmer: lower case, runs of a-z and 0-9.

    Lower case comes first, as it turns some letters into ASCII (the Kelvin sign becomes k).
    """
    return text.lower().encode("ascii", "replace").translate(SEPARATED).split()
