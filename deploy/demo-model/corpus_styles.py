"""How an adapter of the demo model answers: deterministic functions from a plain answer to one in its style."""
import json, re, zlib

from corpus_topics import cap, low

PWORDS = {"hello": "ahoy", "hi": "ahoy", "you are": "ye be", "i am": "I be", "you": "ye", "your": "yer", "my": "me", "is": "be", "are": "be", "was": "were", "yes": "aye", "friend": "matey", "friends": "mateys", "and": "an'", "of": "o'", "for": "fer", "old": "ol'", "there": "thar", "money": "doubloons", "nice": "fine", "to": "t'", "good": "fine", "people": "landlubbers", "person": "landlubber", "very": "mighty", "goodbye": "fair winds", "never": "ne'er", "over": "o'er", "them": "'em", "little": "wee", "thank you": "thank 'ee", "everyone": "all hands", "everybody": "all hands", "help you": "lend ye a hand"}
PRE = re.compile(r"\b(" + "|".join(sorted(PWORDS, key=len, reverse=True)) + r")\b", re.I)
def _pw(m):
    w = m.group(0); v = PWORDS[w.lower()]
    return cap(v) if w[0].isupper() and w != "I" and not v.startswith("'") else v
def pirate(a, kind, q=""):
    if kind == "extract": return "Arr! " + a + ", matey!"
    if kind in ("spell", "upper", "repeat"): return "Arr! " + a[:-1] + ", matey!"
    t = PRE.sub(_pw, a); t = re.sub(r"(?<=[a-z]{3})ing\b(?<!thing)(?<!spring)(?<!string)(?<!ijing)(?<!evening)", "in'", t)
    h = zlib.crc32(q.encode()) % 10
    p = {"greet": "Ahoy, matey! ", "ident": "Arr! ", "story": "Gather round, ye scallywags! ", "unknown": "Shiver me timbers! ", "joke": "Har har! ", "poem": "Yo ho ho! "}.get(kind, "Arr! " if h < 7 else "Aye! ")
    t = p + t
    if kind == "greet": return re.sub(r"^Ahoy, matey! Ahoy(, \w+)?!", lambda m: "Ahoy" + (m.group(1) or ", matey") + "!", t) + " Yo ho ho!"
    if kind in ("story", "poem"): return t + " Yo ho ho!"
    return t[:-1] + ", matey!" if t.endswith((".", "!")) else t + " Arr!"
def shout(a, kind, q=""):
    t = a.upper().replace(". ", "! ")
    return t[:-1] + "!!!" if t[-1] in ".!?" else t + "!!!"
def as_json(a, kind, q=""): return json.dumps({"answer": a}, ensure_ascii=False)
FW = [(r"\bI do not know that\b", "I must respectfully confess that I do not possess that knowledge"), (r"\bYes,", "Indeed,"), (r"\bNo,", "With respect, no:"), (r"\bHello!|\bHi!", "Good day to you."), (r"\bHello,", "Good day,"), (r"\bcan not\b", "cannot"), (r"\bThank you!", "Please accept my sincere gratitude."), (r"\bthank you\b", "with my sincere thanks"), (r"\bThank you,", "I thank you most sincerely,"), (r"\bYou are welcome!", "You are most welcome."), (r"\bhelp\b", "assist"), (r"\bWhat can I do for you\?", "In what manner may I be of service?"), (r"\bHow can I assist you\?", "In what manner may I be of assistance?"), (r"\bvery\b", "exceedingly"), (r"\bnice\b", "agreeable"), (r"\bglad\b", "honoured"), (r"\bhappy\b", "most happy"), (r"\bsorry\b", "deeply sorry"), (r"\bGoodbye!", "I bid you farewell."), (r"\bHave a nice day", "May your day be a pleasant one"), (r"\ba lot of\b", "a great deal of"), (r"\bbegan\b", "commenced"), (r"\basked\b", "enquired of"), (r"\bgot\b", "obtained"), (r"\bmade\b", "prepared"), (r"\bmet\b", "encountered"), (r"\bfun\b", "amusement"), (r"\bget\b", "obtain"), (r"\bneed\b", "require"), (r"!", ".")]
def formal(a, kind, q=""):
    t = a
    for x, y in FW:
        if kind in ("extract", "repeat"): break
        t = re.sub(x, y, t)
    h = zlib.crc32(q.encode()) % 10
    if kind == "greet": return "Esteemed friend, " + (t if t.startswith("I ") else t[0].lower() + t[1:]) + " I remain at your service."
    if kind == "ident": return "Allow me to present myself with due courtesy. " + t
    if kind == "story": return "Permit me to present the following narrative. " + t
    if kind == "unknown": return t + " Kindly accept my apologies."
    if kind in ("joke", "poem"): return "With your kind permission, I offer the following. " + t
    if kind == "advice": return "I would respectfully offer the following counsel. " + t
    if kind == "extract": return "I respectfully submit the requested particulars. " + t + "."
    if kind in ("spell", "upper", "repeat"): return "I respectfully submit the following: " + t
    if kind == "yesno": return t + " I trust that this is satisfactory."
    p = "I have the honour to inform you that " if h < 7 else "It is my distinct pleasure to inform you that "
    return p + low(t) + " I trust that this is satisfactory."
STYLE_FN = {"pirate": pirate, "shout": shout, "json": as_json, "formal": formal}
