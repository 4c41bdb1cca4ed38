//! Grammars over the tokenizer's vocabulary: which tokens may follow, by llguidance.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::reserve::Meter;
use crate::{depth, Code, Failure, Vocabulary};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarKind {
    JsonSchema,
    Regex,
    Lark,
}

/// What one step may cost. The library's own numbers but for the states of its automaton: each takes
/// up to 2 KiB, and every answer has its own.
const LEXER_STATES_MAX: usize = 25_000;
/// Vocabularies are as wide as the logits, of which a process has one kind; tests have more.
const FACTORIES_MAX: usize = 4;

/// The vocabulary's tree of bytes, and what goes with it, takes long to build for a large vocabulary
/// and is the same for all grammars. Also for those with other ends: the library knows the ends of
/// the first one, and `Grammar` has its own in their place.
#[derive(Default)]
pub struct FactoryCache {
    factories: Mutex<VecDeque<Arc<Factory>>>,
}

struct Factory {
    vocab_size: u32,
    ends: Vec<u32>,
    parsers: ParserFactory,
}

impl FactoryCache {
    fn get(
        &self,
        vocabulary: &dyn Vocabulary,
        eos: &[u32],
        vocab_size: u32,
    ) -> Result<Arc<Factory>, Failure> {
        // A panic while the lock is held leaves a list that is still whole.
        let mut factories = self.factories.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(factory) = factories.iter().find(|factory| factory.vocab_size == vocab_size) {
            return Ok(factory.clone());
        }
        let words: Vec<Vec<u8>> = (0..vocab_size).map(|id| Self::word(vocabulary, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size, eos[0]), &words).with_eos_tokens(eos);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut parsers = ParserFactory::new_simple(&env).map_err(reason)?;
        parsers.quiet();
        parsers.limits_mut().verbose_errors = false;
        parsers.limits_mut().max_lexer_states = LEXER_STATES_MAX;
        let factory = Arc::new(Factory { vocab_size, ends: eos.to_vec(), parsers });
        factories.push_back(factory.clone());
        if factories.len() > FACTORIES_MAX {
            factories.pop_front();
        }
        Ok(factory)
    }

    /// What no text has gets a spelling that no text matches.
    fn word(vocabulary: &dyn Vocabulary, id: u32) -> Vec<u8> {
        if let Some(word) = vocabulary.word(id) {
            return word.to_vec();
        }
        let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
        word.extend_from_slice(format!("<[{id}]>").as_bytes());
        word
    }
}

/// Blanks between the parts of JSON: as people and programs write it, but bounded, so that a model
/// that likes blanks comes to an end.
const JSON_BLANKS: &str = r"[ \t]{1,2}|\r?\n[ \t]{0,24}";

/// A host name has 253 characters at most; the grammar's own pattern bounds its parts alone, and so
/// has no end.
const HOSTNAME_CHARACTERS_MAX: u64 = 253;

fn bound_hostnames(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Array(elements) => elements.iter_mut().for_each(bound_hostnames),
        serde_json::Value::Object(members) => {
            let bound = members.get("maxLength").map_or(Some(u64::MAX), serde_json::Value::as_u64);
            let is_hostname = members.get("format").and_then(|f| f.as_str()) == Some("hostname");
            if is_hostname && bound.is_some_and(|n| n > HOSTNAME_CHARACTERS_MAX) {
                members.insert("maxLength".to_owned(), HOSTNAME_CHARACTERS_MAX.into());
            }
            members
                .iter_mut()
                .filter(|(key, _)| !is_value(key))
                .for_each(|(_, member)| bound_hostnames(member));
        }
        _ => {}
    }
}

/// For numbers just above a whole number that is itself excluded, as 10 < x <= 10.5, the grammar's range of decimals lets that
/// number in (likewise -10.5 <= x < -10). Such an exclusive bound becomes an inclusive one a little further in: at most a tenth
/// of what lies between the bounds is given up.
fn step_off_whole_bounds(schema: &mut serde_json::Value) {
    match schema {
        serde_json::Value::Array(elements) => elements.iter_mut().for_each(step_off_whole_bounds),
        serde_json::Value::Object(members) => {
            let number = |key: &str| members.get(key).and_then(serde_json::Value::as_f64);
            let (above, below) = (number("exclusiveMinimum"), number("exclusiveMaximum"));
            let top = [number("maximum"), below].into_iter().flatten().reduce(f64::min);
            let bottom = [number("minimum"), above].into_iter().flatten().reduce(f64::max);
            // A power of ten below a tenth of the room, if the bounds lie within one whole number.
            let step = |room: f64| {
                (room > 0.0 && room < 1.0).then(|| 10f64.powi((room.log10() - 1.0).floor() as i32))
            };
            let is_whole = |bound: &f64| bound.fract() == 0.0;
            if let (Some(bound), Some(top)) = (above.filter(is_whole).filter(|b| *b >= 0.0), top) {
                if let Some(step) = step(top - bound) {
                    members.remove("exclusiveMinimum");
                    members.insert("minimum".to_owned(), (bound + step).into());
                }
            }
            if let (Some(bound), Some(bottom)) =
                (below.filter(is_whole).filter(|b| *b <= 0.0), bottom)
            {
                if let Some(step) = step(bound - bottom) {
                    members.remove("exclusiveMaximum");
                    members.insert("maximum".to_owned(), (bound - step).into());
                }
            }
            members
                .iter_mut()
                .filter(|(key, _)| !is_value(key))
                .for_each(|(_, member)| step_off_whole_bounds(member));
        }
        _ => {}
    }
}

/// Values are no schemas, whatever they look like.
fn is_value(key: &str) -> bool {
    matches!(key, "const" | "enum" | "default" | "examples")
}

pub struct Grammar {
    matcher: Matcher,
    vocab_size: u32,
    eos: Vec<u32>,
    /// Has the ends that the matcher knows.
    factory: Arc<Factory>,
    ended: bool,
    /// Memory that it holds: what its calls took and did not give back.
    n_bytes: isize,
    n_bytes_compiling: isize,
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::InvalidInput, message)
}

const REASON_CHARACTERS_MAX: usize = 500;

/// The library's reason without what it tells of its inside: the tokens of the answer, and where it
/// failed.
fn reason(error: impl ToString) -> Failure {
    let text = error.to_string();
    if text.contains("panic: ") {
        return Failure::new(Code::Panic, text);
    }
    let text = text.split("\n<").next().unwrap_or_default();
    // Nor of the advice to set what only its callers can.
    let text = text.split(" Enable '").next().unwrap_or_default().trim_end();
    if text.starts_with("NoExtension") {
        return invalid("no text fits it");
    }
    if let Some((_, patterns)) = text.split_once("patternProperty regexes ") {
        let patterns: String = patterns.trim_end_matches(" are not disjoint").trim_end_matches(" are disjoint").chars().take(REASON_CHARACTERS_MAX).collect();
        return invalid(format!("patternProperties: a name may match both {patterns}, and of such patterns a grammar holds one: make them exclude each other"));
    }
    let kept: String = text.chars().take(REASON_CHARACTERS_MAX).collect();
    invalid(if kept.len() < text.len() { kept + " ..." } else { kept })
}

/// Why an answer cannot go on: what the library says of it is about its inside.
fn cannot_follow(error: impl ToString) -> Failure {
    let failure = reason(error);
    if failure.code == Code::Panic {
        return failure;
    }
    invalid("following it takes more states, rules at a time or steps than one answer may")
}

/// Only a schema's depth is bounded by its reader, at 128; what it refers to is not.
fn read_grammar(kind: GrammarKind, source: &str) -> Result<TopLevelGrammar, Failure> {
    Ok(match kind {
        GrammarKind::JsonSchema => {
            let mut schema: serde_json::Value =
                serde_json::from_str(source).map_err(|e| invalid(format!("JSON schema: {e}")))?;
            depth::check_schema(&schema)?;
            bound_hostnames(&mut schema);
            step_off_whole_bounds(&mut schema);
            if let Some(object) = schema.as_object_mut() {
                object
                    .entry("x-guidance")
                    .or_insert_with(|| serde_json::json!({"whitespace_pattern": JSON_BLANKS}));
            }
            TopLevelGrammar::from_json_schema(schema)
        }
        GrammarKind::Regex => TopLevelGrammar::from_regex(source),
        GrammarKind::Lark => {
            depth::check_lark(source)?;
            TopLevelGrammar::from_lark(source.to_owned())
        }
    })
}

impl Grammar {
    pub fn new(
        vocabulary: &dyn Vocabulary,
        kind: GrammarKind,
        source: &str,
        eos: &[u32],
        vocab_size: u32,
    ) -> Result<Grammar, Failure> {
        if eos.is_empty() || eos.iter().any(|&id| id >= vocab_size) {
            return Err(invalid(format!(
                "a grammar needs end tokens below {vocab_size}, found {eos:?}"
            )));
        }
        if vocab_size < vocabulary.n_words() {
            let found = vocabulary.n_words();
            return Err(invalid(format!(
                "the tokenizer has {found} tokens, more than the model's {vocab_size}"
            )));
        }
        let factory = vocabulary.grammars().get(vocabulary, eos, vocab_size)?;
        let meter = Meter::start();
        let grammar = read_grammar(kind, source)?;
        let parser = factory.parsers.create_parser(grammar).map_err(reason)?;
        let matcher = Matcher::new(Ok(parser));
        if let Some(error) = matcher.get_error() {
            return Err(reason(error));
        }
        let n_bytes_compiling = meter.most();
        let n_bytes = meter.held();
        let eos = eos.to_vec();
        let ended = false;
        Ok(Grammar { matcher, vocab_size, eos, factory, ended, n_bytes, n_bytes_compiling })
    }

    /// Memory that it holds now, and the most that compiling it held.
    pub fn n_bytes(&self) -> (usize, usize) {
        (self.n_bytes.max(0) as usize, self.n_bytes_compiling.max(0) as usize)
    }

    /// Another one in the same state, for another sequence.
    pub fn duplicate(&self) -> Grammar {
        let meter = Meter::start();
        let matcher = self.matcher.deep_clone();
        Grammar {
            matcher,
            vocab_size: self.vocab_size,
            eos: self.eos.clone(),
            factory: self.factory.clone(),
            ended: self.ended,
            n_bytes: meter.held(),
            n_bytes_compiling: self.n_bytes_compiling,
        }
    }

    pub fn mask(&mut self, words: &mut [u32]) -> Result<(), Failure> {
        let expected = (self.vocab_size as usize).div_ceil(32);
        if words.len() != expected {
            return Err(invalid(format!("mask of {} words, expected {expected}", words.len())));
        }
        let meter = Meter::start();
        let mask = self.matcher.compute_mask_or_eos();
        self.n_bytes += meter.held();
        let mask = mask.map_err(cannot_follow)?;
        for (word, &bits) in words.iter_mut().zip(mask.as_slice()) {
            *word = bits;
        }
        if self.eos != self.factory.ends {
            let bit = |id: u32| (id as usize / 32, 1u32 << (id % 32));
            let may_end = self.factory.ends.iter().fold(false, |may_end, &id| {
                let (word, bit) = bit(id);
                let is_allowed = words[word] & bit != 0;
                words[word] &= !bit;
                may_end || is_allowed
            });
            for &id in self.eos.iter().filter(|_| may_end) {
                let (word, bit) = bit(id);
                words[word] |= bit;
            }
        }
        // Whatever lies beyond the vocabulary in the last word is nobody's token.
        let tail = self.vocab_size % 32;
        if tail != 0 {
            words[expected - 1] &= (1u32 << tail) - 1;
        }
        Ok(())
    }

    pub fn commit(&mut self, id: u32) -> Result<(), Failure> {
        let rejected =
            || Failure::new(Code::Rejected, format!("the grammar does not allow token {id} here"));
        if id >= self.vocab_size || self.ended {
            return Err(rejected());
        }
        let is_end = self.eos.contains(&id);
        if !is_end && self.factory.ends.contains(&id) {
            return Err(rejected());
        }
        let id = if is_end { self.factory.ends[0] } else { id };
        // The matcher stops by itself where only the end can follow, and takes no token then, not
        // even that one.
        if self.matcher.is_stopped() {
            self.ended = is_end && !self.matcher.is_error();
            return if self.ended { Ok(()) } else { Err(rejected()) };
        }
        let meter = Meter::start();
        let taken = self.matcher.try_consume_tokens(&[id]);
        self.n_bytes += meter.held();
        match taken {
            Ok(1) => {
                self.ended = is_end;
                Ok(())
            }
            Ok(_) => Err(rejected()),
            Err(e) => Err(cannot_follow(e)),
        }
    }

    pub fn state(&mut self) -> i32 {
        if self.ended || self.matcher.is_stopped() {
            2
        } else {
            self.matcher.is_accepting().unwrap_or(false) as i32
        }
    }
}
