"""Token ids of awkward prompts, as FluxPipeline passes them to its text encoders: padded and cut to the full length."""
import json
from pathlib import Path

from tokenizers import Tokenizer
from transformers import CLIPTokenizer, T5TokenizerFast

# A prompt is `text` repeated `repeat` times, so that long ones stay small in the file.
PROMPTS = [
    "", " ", "a", "A", "ice cream, 3d rendered emoji", "red apple, flat noto emoji", "Red  Apple!", "  leading and trailing  ",
    "UPPER CASE WORDS", "MiXeD cAsE", "tabs\tand\nnew\r\nlines", "many     spaces", "non\u00a0breaking\u2003and\u3000wide spaces",
    "piñata, 3d rendered emoji", "pin\u0303ata with a combining tilde", "naïve café — “quoted” … ellipsis", "Straße GROẞ ǅ İstanbul",
    "東京の夜景", "привет, мир", "مرحبا بالعالم", "नमस्ते दुनिया", "안녕하세요", "🍦 ice cream 🍨", "👩‍🚀 woman astronaut", "🇩🇪🇯🇵 flags",
    "ﬁne ﬂuent ligatures", "① ② Ⅷ ½ ２３", "1234567890 3.14159 1,000", "it's we're I'd he'll they've", "don't stop'n'go ''quotes''",
    "a.b.c...d!!!???", "snake_case kebab-case camelCase", "path/to\\file <html> & {json: [1,2]}", "https://example.com/?q=1&r=2#x",
    "</s> <pad> <unk> literal", "<|startoftext|>a<|endoftext|>b", "<extra_id_0> sentinel", "zero\u200bwidth\u200djoiner \ufeffbom",
    "\u0000nul and \u0007bell", "x\u0301\u0302\u0303 stacked", "supercalifragilisticexpialidocious",
    ("word ", 20), ("ice cream, ", 12), ("a", 300), ("red apple ", 10000), ("🍦", 40), ("supercalifragilistic", 5000),
]


def encode(tokenizer, text: str, length: int) -> tuple[list[int], int]:
    """The padded ids, and how many ids the prompt has uncut (with its special tokens)."""
    ids = tokenizer(text, padding="max_length", max_length=length, truncation=True).input_ids
    assert len(ids) == length
    return ids, len(tokenizer(text).input_ids)


def write(path: Path, folders: dict[str, Path], without_json: Path) -> None:
    """`without_json` has the CLIP tokenizer of `folders["small"]` as vocab.json + merges.txt, and must give the same ids."""
    merges_only = CLIPTokenizer.from_pretrained(without_json / "tokenizer")
    rows = []
    differences = []
    for name, folder in folders.items():
        clip, t5 = CLIPTokenizer.from_pretrained(folder / "tokenizer"), T5TokenizerFast.from_pretrained(folder / "tokenizer_2")
        plain = {kind: Tokenizer.from_file(str(folder / sub / "tokenizer.json")) for kind, sub in (("clip", "tokenizer"), ("t5", "tokenizer_2"))}
        for prompt in PROMPTS:
            text, repeat = (prompt, 1) if isinstance(prompt, str) else prompt
            row = dict(tokenizers=name, text=text, repeat=repeat)
            for kind, tokenizer in (("clip", clip), ("t5", t5)):
                ids, whole = encode(tokenizer, text * repeat, tokenizer.model_max_length)
                direct = plain[kind].encode(text * repeat).ids
                if direct != tokenizer(text * repeat).input_ids:
                    differences.append((name, kind, text))
                if (name, kind) == ("small", "clip") and ids != encode(merges_only, text * repeat, 77)[0]:
                    differences.append(("vocab.json + merges.txt", kind, text))
                row[kind] = ids
                row[f"{kind}_count_uncut"] = whole
            rows.append(row)
    assert not differences, f"tokenizer.json and transformers disagree: {differences}"
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=True) for row in rows) + "\n]\n", "utf8")
    print("tokens", len(rows), "rows")
