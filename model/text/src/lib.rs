//! Text for lorad behind a C ABI (lorad_text.h): the tokenizer, chat templates as transformers
//! renders them, and grammars that restrict sampling. Nothing unwinds across the border: every
//! exported function goes through `guard`.

mod chat;
mod depth;
mod ffi;
mod ffi_grammar;
mod grammar;
mod jinja;
mod reserve;
mod reserve_c;
mod reserve_thread;
mod tokenizer;
mod vocabulary;

pub use chat::ChatTemplate;
pub use grammar::{Grammar, GrammarKind};
pub use tokenizer::{DecoderKind, TextTokenizer};
pub use vocabulary::{Vocabulary, Words};

/// Why a call failed; the numbers are those of lorad_text.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    InvalidFile = 1,
    InvalidInput = 2,
    TemplateRaised = 3,
    TemplateFailed = 4,
    NoTemplate = 5,
    Rejected = 6,
    Panic = 7,
    NoMemory = 8,
    TooComplex = 9,
    NoSuchTemplate = 10,
}

#[derive(Clone, Debug)]
pub struct Failure {
    pub code: Code,
    pub message: String,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}
