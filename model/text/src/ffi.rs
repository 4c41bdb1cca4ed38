//! The exported functions for tokenizer and template. Types and rules are in lorad_text.h.

use std::panic::{catch_unwind, AssertUnwindSafe};

use crate::jinja::Budget;
use crate::reserve::{self, Room};
use crate::{ChatTemplate, Code, Failure, TextTokenizer, Words};

pub type LoradTokenizer = std::sync::Arc<TextTokenizer>;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LoradText {
    pub data: *const u8,
    pub size: usize,
}

#[repr(C)]
pub struct LoradBytes {
    pub data: *mut u8,
    pub size: usize,
    pub capacity: usize,
}

#[repr(C)]
pub struct LoradIds {
    pub data: *mut u32,
    pub size: usize,
    pub capacity: usize,
}

impl LoradText {
    /// # Safety
    /// The caller of the ABI promises that data points to size bytes, or is null.
    pub unsafe fn bytes<'a>(self) -> Option<&'a [u8]> {
        if self.data.is_null() {
            return None;
        }
        Some(std::slice::from_raw_parts(self.data, self.size))
    }

    /// # Safety
    /// As for `bytes`.
    pub unsafe fn text<'a>(self, what: &str) -> Result<Option<&'a str>, Failure> {
        match self.bytes() {
            None => Ok(None),
            Some(bytes) => std::str::from_utf8(bytes)
                .map(Some)
                .map_err(|e| Failure::new(Code::InvalidInput, format!("{what} is not UTF-8: {e}"))),
        }
    }
}

fn give_bytes(bytes: Vec<u8>) -> LoradBytes {
    let mut bytes = std::mem::ManuallyDrop::new(bytes);
    LoradBytes { data: bytes.as_mut_ptr(), size: bytes.len(), capacity: bytes.capacity() }
}

fn give_ids(ids: Vec<u32>) -> LoradIds {
    let mut ids = std::mem::ManuallyDrop::new(ids);
    LoradIds { data: ids.as_mut_ptr(), size: ids.len(), capacity: ids.capacity() }
}

/// Panics become errors, so their message belongs there and not on stderr.
fn quiet_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| std::panic::set_hook(Box::new(|_| {})));
}

/// What Oniguruma says of ONIGERR_MEMORY, where the reserve had nothing either; its wrapper panics with that, and nothing is harmed.
const REGEX_WITHOUT_MEMORY: &str = "fail to memory allocation";

const MESSAGE_CHARACTERS_MAX: usize = 2000;

/// Runs the body of an exported function: turns its failure into code and message, and a panic into
/// one as well.
pub fn guard(error: *mut LoradBytes, body: impl FnOnce() -> Result<(), Failure>) -> i32 {
    quiet_panics();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return 0,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            if text.ends_with(REGEX_WITHOUT_MEMORY) {
                Failure::new(Code::NoMemory, "no memory to match a pattern")
            } else {
                Failure::new(Code::Panic, text)
            }
        }
    };
    if !error.is_null() {
        // A panic's text may hold all of the input.
        let message = failure.message.chars().take(MESSAGE_CHARACTERS_MAX).collect::<String>();
        // SAFETY: the caller gives a pointer that may be written, or null.
        unsafe { error.write(give_bytes(message.into_bytes())) };
    }
    failure.code as i32
}

/// The same for functions that cannot fail but by a panic.
pub fn guard_value<T>(on_panic: T, body: impl FnOnce() -> T) -> T {
    quiet_panics();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(on_panic)
}

#[no_mangle]
pub extern "C" fn lorad_text_reserve_is_whole() -> i32 {
    reserve::is_whole() as i32
}

#[no_mangle]
pub extern "C" fn lorad_text_give_up_reserve() {
    reserve::give_up();
}

#[no_mangle]
pub unsafe extern "C" fn lorad_text_free_bytes(bytes: LoradBytes) {
    if !bytes.data.is_null() {
        drop(Vec::from_raw_parts(bytes.data, bytes.size, bytes.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_text_free_ids(ids: LoradIds) {
    if !ids.data.is_null() {
        drop(Vec::from_raw_parts(ids.data, ids.size, ids.capacity));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_new(
    json: LoradText,
    out: *mut *mut LoradTokenizer,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let tokenizer = TextTokenizer::from_json(json.bytes().unwrap_or(&[]))?;
        out.write(Box::into_raw(Box::new(LoradTokenizer::new(tokenizer))));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_free(tokenizer: *mut LoradTokenizer) {
    if !tokenizer.is_null() {
        guard_value((), || drop(Box::from_raw(tokenizer)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_encode(
    tokenizer: *const LoradTokenizer,
    text: LoradText,
    add_special_tokens: i32,
    out: *mut LoradIds,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let text = text.text("text")?.unwrap_or("");
        let _room = Room::for_input(text.len())?;
        out.write(give_ids((*tokenizer).encode(text, add_special_tokens != 0)?));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_encode_placed(
    tokenizer: *const LoradTokenizer,
    text: LoradText,
    out: *mut LoradIds,
    begins: *mut LoradIds,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let text = text.text("text")?.unwrap_or("");
        let _room = Room::for_input(text.len())?;
        let (ids, places) = (*tokenizer).encode_placed(text)?;
        out.write(give_ids(ids));
        begins.write(give_ids(places));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_decode(
    tokenizer: *const LoradTokenizer,
    ids: *const u32,
    count: usize,
    skip_special_tokens: i32,
    out: *mut LoradBytes,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let ids = if count == 0 { &[] } else { std::slice::from_raw_parts(ids, count) };
        out.write(give_bytes((*tokenizer).decode(ids, skip_special_tokens != 0)?.into_bytes()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_words(
    tokenizer: *const LoradTokenizer,
    out: *mut LoradBytes,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        out.write(give_bytes(Words::write(&**tokenizer)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_vocab_size(tokenizer: *const LoradTokenizer) -> u32 {
    (*tokenizer).vocab_size()
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_decoder(tokenizer: *const LoradTokenizer) -> i32 {
    (*tokenizer).kind() as i32
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_token_id(
    tokenizer: *const LoradTokenizer,
    token: LoradText,
) -> i64 {
    guard_value(-1, || {
        let token = token.text("token").ok().flatten().unwrap_or("");
        (*tokenizer).token_id(token).map_or(-1, i64::from)
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_token_flags(
    tokenizer: *const LoradTokenizer,
    id: u32,
) -> u32 {
    (*tokenizer).token_flags(id)
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_token_text(
    tokenizer: *const LoradTokenizer,
    id: u32,
    out: *mut LoradBytes,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let text = (*tokenizer)
            .token_text(id)
            .ok_or_else(|| Failure::new(Code::InvalidInput, format!("no token has the id {id}")))?;
        out.write(give_bytes(text.as_bytes().to_vec()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_tokenizer_token_bytes(
    tokenizer: *const LoradTokenizer,
    id: u32,
) -> LoradText {
    let bytes = (*tokenizer).token_bytes(id);
    LoradText { data: bytes.as_ptr(), size: bytes.len() }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_new(
    tokenizer_config: LoradText,
    special_tokens: LoradText,
    jinja: LoradText,
    template_json: LoradText,
    out: *mut *mut ChatTemplate,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let template = ChatTemplate::new(
            tokenizer_config.text("tokenizer_config.json")?,
            special_tokens.text("special_tokens_map.json")?,
            jinja.text("chat_template.jinja")?,
            template_json.text("chat_template.json")?,
        )?;
        out.write(Box::into_raw(Box::new(template)));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_free(template: *mut ChatTemplate) {
    if !template.is_null() {
        guard_value((), || drop(Box::from_raw(template)));
    }
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_exists(template: *const ChatTemplate) -> i32 {
    (*template).exists() as i32
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_tokens(
    template: *const ChatTemplate,
    out: *mut LoradBytes,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        out.write(give_bytes((*template).tokens_json().into_bytes()));
        Ok(())
    })
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_check(
    template: *const ChatTemplate,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || (*template).check())
}

#[no_mangle]
pub unsafe extern "C" fn lorad_template_render(
    template: *const ChatTemplate,
    input: LoradText,
    now: i64,
    out: *mut LoradBytes,
    marked: *mut LoradIds,
    error: *mut LoradBytes,
) -> i32 {
    guard(error, || {
        let input = input.text("template input")?.unwrap_or("");
        let _room = Room::for_input(input.len())?;
        let budget = Budget::start();
        let (text, marks) = (*template).render(input, now).map_err(|failure| match budget.over() {
            Some(why) => Failure::new(Code::TooComplex, format!("chat template: {why}")),
            None => failure,
        })?;
        if !marked.is_null() {
            let places = marks.into_iter().flat_map(|(begin, end)| [begin as u32, end as u32]);
            marked.write(give_ids(places.collect()));
        }
        out.write(give_bytes(text.into_bytes()));
        Ok(())
    })
}
