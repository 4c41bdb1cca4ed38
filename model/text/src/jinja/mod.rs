//! Chat templates with the meaning that Jinja2 and Python give them: minijinja reads the template,
//! this module evaluates its syntax tree with Python's values (numbers, printing, slices, methods,
//! errors), in the sandbox and with the settings of transformers. Evaluation is ours because
//! templates print and compare Python values, and a prompt that differs by a character is another
//! prompt.

use std::fmt;

mod args;
mod attributes;
mod bounds;
mod budget;
mod compare;
mod dict;
mod eval;
mod exec;
mod filters;
mod filters_seq;
mod filters_text;
mod format;
mod format_percent;
mod format_spec;
mod functions;
mod is_tests;
mod json;
mod methods;
mod ops;
mod repr;
mod scope;
mod source;
mod str_methods;
mod str_split;
mod strftime;
mod translate;
mod unicode;
mod value;
mod walk;

pub use budget::Budget;
pub use dict::Dict;
pub use json::parse as parse_json;
pub use source::Template;
pub use value::Value;

/// What stops a rendering. The text of `Raised` is the template's own; the others are worded as
/// Python would.
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// raise_exception was called.
    Raised(String),
    Failed(String),
}

impl Error {
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(message.into())
    }

    /// As much of a message as is ever shown: its parts may be of any length.
    pub fn formatted(message: fmt::Arguments<'_>) -> Error {
        let mut text = Shortened(String::new());
        _ = fmt::write(&mut text, message);
        Error::Failed(text.0)
    }
}

struct Shortened(String);

impl fmt::Write for Shortened {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        const MAX_BYTES: usize = 16 << 10;
        let mut end = part.len().min(MAX_BYTES - self.0.len().min(MAX_BYTES));
        while !part.is_char_boundary(end) {
            end -= 1;
        }
        self.0.push_str(&part[..end]);
        if end < part.len() {
            return Err(fmt::Error);
        }
        Ok(())
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// What `return Err(Error::failed(format!(..)))` says in short.
macro_rules! fail {
    ($($arg:tt)*) => { return Err($crate::jinja::Error::formatted(format_args!($($arg)*))) };
}
pub(crate) use fail;
