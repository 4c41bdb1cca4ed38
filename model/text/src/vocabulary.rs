//! What grammars need of a tokenizer: the bytes that each token adds to a text. A process without
//! the tokenizer gets them as one list (`Words`).

use crate::grammar::FactoryCache;
use crate::tokenizer::{SPECIAL, UNKNOWN};
use crate::{Code, Failure, TextTokenizer};

pub trait Vocabulary {
    fn n_words(&self) -> u32;
    /// None for special tokens and ids without a token: no text has them.
    fn word(&self, id: u32) -> Option<&[u8]>;
    fn grammars(&self) -> &FactoryCache;
}

impl Vocabulary for TextTokenizer {
    fn n_words(&self) -> u32 {
        self.vocab_size()
    }

    fn word(&self, id: u32) -> Option<&[u8]> {
        (self.token_flags(id) & (SPECIAL | UNKNOWN) == 0).then(|| self.token_bytes(id))
    }

    fn grammars(&self) -> &FactoryCache {
        TextTokenizer::grammars(self)
    }
}

/// The words alone.
pub struct Words {
    words: Vec<Option<Vec<u8>>>,
    grammars: FactoryCache,
}

/// Stands for the length of what is no word.
const NONE: u32 = u32::MAX;

impl Words {
    /// For each id the length, four bytes with the lowest first, and the bytes.
    pub fn write(of: &dyn Vocabulary) -> Vec<u8> {
        let mut list = Vec::new();
        for word in (0..of.n_words()).map(|id| of.word(id)) {
            list.extend(word.map_or(NONE, |word| word.len() as u32).to_le_bytes());
            list.extend(word.unwrap_or_default());
        }
        list
    }

    pub fn read(mut list: &[u8]) -> Result<Words, Failure> {
        let mut words = Vec::new();
        while let Some((length, rest)) = list.split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length);
            let n_bytes = if length == NONE { 0 } else { length as usize };
            let Some((word, rest)) = rest.split_at_checked(n_bytes) else { break };
            words.push((length != NONE).then(|| word.to_vec()));
            list = rest;
        }
        if !list.is_empty() {
            let message = format!("a list of words that breaks off after {}", words.len());
            return Err(Failure::new(Code::InvalidInput, message));
        }
        Ok(Words { words, grammars: FactoryCache::default() })
    }
}

impl Vocabulary for Words {
    fn n_words(&self) -> u32 {
        self.words.len() as u32
    }

    fn word(&self, id: u32) -> Option<&[u8]> {
        self.words.get(id as usize)?.as_deref()
    }

    fn grammars(&self) -> &FactoryCache {
        &self.grammars
    }
}
