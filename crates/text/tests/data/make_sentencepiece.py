"""Writes sentencepiece.json: a small SentencePiece BPE vocabulary and what its own library makes of
corpus.json.

    pip install sentencepiece
    python make_sentencepiece.py > sentencepiece.json

Trained on the corpus with Llama-2's settings: BPE, byte fallback, no normalization, a space in
front of the text, white space kept. Text that spells a control token is left out: the library
never reads it as one, and reading it is tested elsewhere.
"""

import io
import json
import pathlib
import sys

import sentencepiece

HERE = pathlib.Path(__file__).parent


def main():
    corpus = json.loads((HERE / "corpus.json").read_text())
    fits = lambda t: "\x00" not in t and "<s>" not in t and "\u2581" not in t
    corpus = {i: t for i, t in enumerate(corpus) if fits(t)}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for t in corpus.values() for line in t.split("\n") if line]),
        model_writer=model,
        model_type="bpe",
        vocab_size=1200,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        add_dummy_prefix=True,
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        max_sentence_length=100000,
        minloglevel=2,
    )
    sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    n = sp.get_piece_size()
    kind = lambda i: 2 if sp.is_unknown(i) else 3 if sp.is_control(i) else 6 if sp.is_byte(i) else 1
    out = {
        "tokens": [sp.id_to_piece(i) for i in range(n)],
        "scores": [sp.get_score(i) for i in range(n)],
        "token_types": [kind(i) for i in range(n)],
        "texts": [],
    }
    for index, text in corpus.items():
        ids = sp.encode(text)
        assert sp.decode(ids) == text
        out["texts"].append({"index": index, "ids": ids})
    json.dump(out, sys.stdout, separators=(",", ":"))


main()
