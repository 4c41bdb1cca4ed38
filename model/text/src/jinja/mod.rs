//! Chat templates with the meaning that Jinja2 and Python give them: minijinja reads the template,
//! this module evaluates its syntax tree with Python's values (numbers, printing, slices, methods,
//! errors), in the sandbox and with the settings of transformers. Evaluation is ours because
//! templates print and compare Python values, and a prompt that differs by a character is another
//! prompt.

mod args;
mod dict;
mod eval;
mod exec;
mod filters;
mod filters_seq;
mod filters_text;
mod format;
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
mod value;

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
}

pub type Result<T> = std::result::Result<T, Error>;

/// What `return Err(Error::failed(format!(..)))` says in short.
macro_rules! fail {
    ($($arg:tt)*) => { return Err($crate::jinja::Error::failed(format!($($arg)*))) };
}
pub(crate) use fail;
