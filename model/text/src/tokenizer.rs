//! The tokenizers library with what incremental decoding and grammars need beside encode and
//! decode.

use std::any::Any;
use std::collections::HashMap;
use std::panic::{catch_unwind, resume_unwind, AssertUnwindSafe};

use serde_json::Value;
use tokenizers::{Encoding, Tokenizer};

use crate::grammar::FactoryCache;
use crate::{Code, Failure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderKind {
    ByteLevel = 0,
    ByteFallback = 1,
    Other = 2,
}

pub const SPECIAL: u32 = 1;
pub const BYTE: u32 = 2;
pub const UNKNOWN: u32 = 4;

#[derive(Clone, Default)]
struct TokenInfo {
    flags: u32,
    bytes: Vec<u8>,
    text: String,
}

pub struct TextTokenizer {
    inner: Tokenizer,
    kind: DecoderKind,
    /// Indexed by id; ids without a token have the flag UNKNOWN.
    tokens: Vec<TokenInfo>,
    grammars: FactoryCache,
}

/// A damaged file may name an id far beyond any vocabulary; the table by id must stay affordable.
const MAX_TOKEN_ID: u32 = 1 << 24;

/// Oniguruma gives up a match after ten million steps back, as in megabytes of blanks; its wrapper
/// panics with that, and nothing is harmed.
fn is_of_long_run(panic: &Box<dyn Any + Send>) -> bool {
    panic.downcast_ref::<String>().is_some_and(|text| text.ends_with("retry-limit-in-match over"))
}

fn caught(encode: impl FnOnce() -> tokenizers::Result<Encoding>) -> Result<Encoding, Failure> {
    match catch_unwind(AssertUnwindSafe(encode)) {
        Ok(encoding) => encoding.map_err(|e| Failure::new(Code::InvalidInput, e.to_string())),
        Err(panic) if is_of_long_run(&panic) => {
            let why = "the text has a run of characters that is too long for the tokenizer";
            Err(Failure::new(Code::InvalidInput, why))
        }
        Err(panic) => resume_unwind(panic),
    }
}

/// What the decoder section says, flattened.
#[derive(Default)]
struct DecoderShape {
    steps: Vec<String>,
    replacements: Vec<(String, String)>,
}

impl DecoderShape {
    fn add(&mut self, decoder: &Value) {
        let kind = decoder["type"].as_str().unwrap_or("").to_owned();
        match kind.as_str() {
            "Sequence" => {
                for step in decoder["decoders"].as_array().into_iter().flatten() {
                    self.add(step);
                }
                return;
            }
            "Replace" => {
                if let (Some(from), Some(to)) =
                    (decoder["pattern"]["String"].as_str(), decoder["content"].as_str())
                {
                    self.replacements.push((from.to_owned(), to.to_owned()));
                }
            }
            "Metaspace" => {
                let from = decoder["replacement"].as_str().unwrap_or("\u{2581}");
                self.replacements.push((from.to_owned(), " ".to_owned()));
            }
            _ => {}
        }
        self.steps.push(kind);
    }

    fn kind(&self) -> DecoderKind {
        if self.steps == ["ByteLevel"] {
            DecoderKind::ByteLevel
        } else if self.steps.iter().any(|s| s == "ByteFallback") {
            DecoderKind::ByteFallback
        } else {
            DecoderKind::Other
        }
    }
}

/// The alphabet of byte-level BPE: printable Latin-1 stands for itself, the other bytes for U+0100
/// and up, in order.
fn byte_alphabet() -> HashMap<char, u8> {
    let itself = |b: u8| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100u32;
    (0..=255u8)
        .map(|byte| {
            let symbol = if itself(byte) {
                byte as u32
            } else {
                next += 1;
                next - 1
            };
            (char::from_u32(symbol).unwrap_or('\u{fffd}'), byte)
        })
        .collect()
}

/// "<0x41>" of byte fallback.
fn fallback_byte(token: &str) -> Option<u8> {
    let hex = token.strip_prefix("<0x")?.strip_suffix('>')?;
    if hex.len() != 2 || !hex.is_ascii() {
        return None;
    }
    u8::from_str_radix(hex, 16).ok()
}

impl TextTokenizer {
    pub fn from_json(json: &[u8]) -> Result<TextTokenizer, Failure> {
        let fail = |e: String| Failure::new(Code::InvalidFile, e);
        let mut inner = Tokenizer::from_bytes(json).map_err(|e| fail(e.to_string()))?;
        // A serving engine must see the whole prompt: transformers too clears both unless asked.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| fail(e.to_string()))?;

        let mut shape = DecoderShape::default();
        if let Some(decoder) = inner.get_decoder() {
            shape.add(&serde_json::to_value(decoder).map_err(|e| fail(e.to_string()))?);
        }
        let kind = shape.kind();
        let vocab = inner.get_vocab(true);
        let highest = vocab.values().copied().max().unwrap_or(0);
        if highest > MAX_TOKEN_ID {
            return Err(fail(format!("token id {highest} is beyond {MAX_TOKEN_ID}")));
        }
        let mut tokens =
            vec![TokenInfo { flags: UNKNOWN, ..TokenInfo::default() }; highest as usize + 1];
        let alphabet = byte_alphabet();
        let added_tokens = inner.get_added_tokens_decoder();
        for &id in vocab.values() {
            // Two spellings may share an id; decoding goes from id to text, so ask that way round.
            let added = added_tokens.get(&id).map(|token| token.content.clone());
            let is_added = added.is_some();
            let Some(text) = added.or_else(|| inner.id_to_token(id)) else { continue };
            // Decoding may use a normalized form of an added token, and tells special ones by that
            // form.
            let decoded_form = inner.get_added_vocabulary().simple_id_to_token(id);
            let special = inner
                .get_added_vocabulary()
                .is_special_token(decoded_form.as_deref().unwrap_or(&text));
            let byte = if kind == DecoderKind::ByteFallback { fallback_byte(&text) } else { None };
            let bytes = match (kind, byte) {
                (_, Some(byte)) => vec![byte],
                (DecoderKind::ByteLevel, None) => {
                    let form = decoded_form.as_deref().unwrap_or(&text);
                    let mapped: Option<Vec<u8>> =
                        form.chars().map(|c| alphabet.get(&c).copied()).collect();
                    mapped.unwrap_or_else(|| form.as_bytes().to_vec())
                }
                _ if is_added => text.clone().into_bytes(),
                _ => {
                    let replaced = shape
                        .replacements
                        .iter()
                        .fold(text.clone(), |t, (from, to)| t.replace(from, to));
                    replaced.into_bytes()
                }
            };
            let flags = if special { SPECIAL } else { 0 } | if byte.is_some() { BYTE } else { 0 };
            tokens[id as usize] = TokenInfo { flags, bytes, text };
        }
        Ok(TextTokenizer { inner, kind, tokens, grammars: FactoryCache::default() })
    }

    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Failure> {
        let encoding = caught(|| self.inner.encode_fast(text, add_special_tokens))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of a text without special tokens of the tokenizer's own, and the byte of the text where
    /// each begins: that of its character, where a character is several tokens.
    pub fn encode_placed(&self, text: &str) -> Result<(Vec<u32>, Vec<u32>), Failure> {
        let encoding = caught(|| self.inner.encode(text, false))?;
        let begins = encoding.get_offsets().iter().map(|&(begin, _)| begin as u32).collect();
        Ok((encoding.get_ids().to_vec(), begins))
    }

    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, Failure> {
        self.inner
            .decode(ids, skip_special_tokens)
            .map_err(|e| Failure::new(Code::InvalidInput, e.to_string()))
    }

    pub fn grammars(&self) -> &FactoryCache {
        &self.grammars
    }

    pub fn kind(&self) -> DecoderKind {
        self.kind
    }

    /// One more than the highest id: what the model's vocabulary must hold at least.
    pub fn vocab_size(&self) -> u32 {
        self.tokens.len() as u32
    }

    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    pub fn token_text(&self, id: u32) -> Option<&str> {
        self.tokens.get(id as usize).filter(|t| t.flags & UNKNOWN == 0).map(|t| t.text.as_str())
    }

    pub fn token_flags(&self, id: u32) -> u32 {
        self.tokens.get(id as usize).map_or(UNKNOWN, |t| t.flags)
    }

    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokens.get(id as usize).map_or(&[], |t| &t.bytes)
    }
}
