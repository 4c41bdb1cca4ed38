//! The exported functions for grammars.

use crate::ffi::{guard, guard_value, LoradBytes, LoradText, LoradTokenizer};
use crate::reserve::Room;
use crate::{Code, Failure, Grammar, GrammarKind, Vocabulary, Words};

unsafe fn compile(
    vocabulary: &dyn Vocabulary,
    kind: i32,
    source: LoradText,
    eos_ids: *const u32,
    eos_count: usize,
    vocab_size: u32,
) -> Result<*mut Grammar, Failure> {
    let kind = match kind {
        0 => GrammarKind::JsonSchema,
        1 => GrammarKind::Regex,
        2 => GrammarKind::Lark,
        other => {
            let message = format!("unknown kind of grammar {other}");
            return Err(Failure::new(Code::InvalidInput, message));
        }
    };
    let source = source.text("grammar")?.unwrap_or("");
    let _room = Room::for_input(source.len())?;
    let eos = if eos_count == 0 { &[] } else { std::slice::from_raw_parts(eos_ids, eos_count) };
    Ok(Box::into_raw(Box::new(Grammar::new(vocabulary, kind, source, eos, vocab_size)?)))
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_new(
    tokenizer: *const LoradTokenizer,
    kind: i32,
    source: LoradText,
    eos_ids: *const u32,
    eos_count: usize,
    vocab_size: u32,
    out: *mut *mut Grammar,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        out.write(compile(&**tokenizer, kind, source, eos_ids, eos_count, vocab_size)?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_words_new(
    list: LoradText,
    out: *mut *mut Words,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let words = Words::read(list.bytes().unwrap_or(&[]))?;
        out.write(Box::into_raw(Box::new(words)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_words_free(words: *mut Words) {
    if !words.is_null() {
        guard_value((), || drop(Box::from_raw(words)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_of_words(
    words: *const Words,
    kind: i32,
    source: LoradText,
    eos_ids: *const u32,
    eos_count: usize,
    vocab_size: u32,
    out: *mut *mut Grammar,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        out.write(compile(&*words, kind, source, eos_ids, eos_count, vocab_size)?);
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_bytes(grammar: *const Grammar, compiling: *mut usize) -> usize {
    let (n_bytes, n_bytes_compiling) = (*grammar).n_bytes();
    if !compiling.is_null() {
        compiling.write(n_bytes_compiling);
    }
    n_bytes
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_free(grammar: *mut Grammar) {
    if !grammar.is_null() {
        guard_value((), || drop(Box::from_raw(grammar)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_duplicate(
    grammar: *const Grammar,
    out: *mut *mut Grammar,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        out.write(Box::into_raw(Box::new((*grammar).duplicate())));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_mask(
    grammar: *mut Grammar,
    words: *mut u32,
    word_count: usize,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let words = if word_count == 0 {
            &mut []
        } else {
            std::slice::from_raw_parts_mut(words, word_count)
        };
        (*grammar).mask(words)
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_commit(
    grammar: *mut Grammar,
    id: u32,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || (*grammar).commit(id))
}

#[no_mangle]
pub unsafe extern "C" fn lorad_grammar_state(grammar: *mut Grammar) -> i32 {
    guard_value(3, || (*grammar).state())
}
