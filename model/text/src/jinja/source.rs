//! From text to syntax tree: minijinja's parser with the settings of transformers.

use minijinja::machinery::{ast, parse};
use minijinja::syntax::SyntaxConfig;

use super::bounds::check_depth;
use super::{Error, Result};

/// A parsed template. The tree borrows from the text beside it.
pub struct Template {
    /// Borrows from `source`, and stands before it, so that it is dropped first.
    tree: ast::Stmt<'static>,
    source: Box<str>,
}

impl Template {
    pub fn parse(text: &str) -> Result<Template> {
        let source: Box<str> = adapt_tags(&normalize_newlines(text)).into();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build()
            .map_err(|e| Error::failed(e.to_string()))?;
        check_depth(&source, syntax.clone())?;
        // SAFETY: the text lives on the heap, is never changed, and is freed after the tree. The
        // lifetime does not leave this struct: `children` gives it out bounded by &self.
        let borrowed: &'static str = unsafe { &*(&*source as *const str) };
        let tree = parse(borrowed, "chat template", syntax).map_err(|e| {
            let line = e.line().map(|line| format!(" in line {line}")).unwrap_or_default();
            Error::failed(format!("syntax error{line}: {}", e.detail().unwrap_or("not understood")))
        })?;
        Ok(Template { tree, source })
    }

    /// Of its text, in bytes.
    pub fn len(&self) -> usize {
        self.source.len()
    }

    pub fn children(&self) -> &[ast::Stmt<'_>] {
        match &self.tree {
            ast::Stmt::Template(template) => &template.children,
            _ => &[],
        }
    }
}

/// Jinja2 reads every kind of line end as a newline.
fn normalize_newlines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

/// The length of `{% generation %}` or another tag of one word at the front, if it is that.
fn tag_length(text: &str, word: &str) -> Option<usize> {
    let inside = text.strip_prefix("{%")?;
    let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).trim_start();
    let rest = inside.strip_prefix(word)?.trim_start();
    let rest = rest.strip_prefix(['-', '+']).unwrap_or(rest).strip_prefix("%}")?;
    Some(text.len() - rest.len())
}

/// The length of an expression or statement with its delimiters, which may stand in its strings
/// too.
fn tag_end(text: &str, close: &str) -> usize {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(2) {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' => escaped = true,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == '\'' || c == '"' => quote = Some(c),
            None if text[at..].starts_with(close) => return at + close.len(),
            None => {}
        }
    }
    text.len()
}

/// What a `with` block of `{% generation %}` sets, so that the evaluator knows it.
pub const GENERATION: &str = "lorad_generation_block";

/// Tags that the parser reads otherwise or not at all. `{% generation %}` marks what the assistant
/// said, for training; it renders its body, in a scope of its own: so does `with`, which the parser
/// knows.
fn adapt_tags(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('{') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let length = if rest.starts_with("{#") {
            rest.find("#}").map_or(rest.len(), |end| end + 2)
        } else if rest.starts_with("{{") {
            tag_end(rest, "}}")
        } else if let Some(open) = tag_length(rest, "raw") {
            let body = &rest[open..];
            let end = body
                .match_indices("{%")
                .find_map(|(i, _)| tag_length(&body[i..], "endraw").map(|n| i + n));
            // Jinja2 keeps the newline behind this tag; minijinja takes one away as it does behind
            // other tags.
            if !rest[..open].ends_with("-%}") && body.starts_with('\n') {
                out.push_str(&rest[..open]);
                out.push('\n');
                out.push_str(&body[..end.unwrap_or(body.len())]);
                rest = &body[end.unwrap_or(body.len())..];
                continue;
            }
            open + end.unwrap_or(body.len())
        } else if let Some(length) = tag_length(rest, "generation") {
            out.push_str(&rest[..length].replacen("generation", &format!("with {GENERATION}=1 "), 1));
            rest = &rest[length..];
            continue;
        } else if let Some(length) = tag_length(rest, "endgeneration") {
            out.push_str(&rest[..length].replacen("endgeneration", "endwith", 1));
            rest = &rest[length..];
            continue;
        } else if rest.starts_with("{%") {
            tag_end(rest, "%}")
        } else {
            1
        };
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out.push_str(rest);
    out
}
