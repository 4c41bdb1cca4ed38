//! JSON in (requests) and out (the filter tojson), as Python's json module reads and writes it.

use std::borrow::Cow;
use std::fmt::Write;

use super::budget::{charge, charge_text, room, room_for_more, ELEMENT, NEW_ELEMENT};
use super::compare::sort_by;
use super::dict::Dict;
use super::repr::{float_repr, text_of};
use super::{fail, Error, Result, Value};

const MAX_DEPTH: usize = 200;

/// Python reads no longer ones.
const MAX_DIGITS: usize = 4300;

pub fn parse<'t>(text: &str) -> Result<Value<'t>> {
    let mut parser = Parser { text, at: 0 };
    let value = parser.value(0)?;
    parser.skip_space();
    if parser.at != text.len() {
        return Err(parser.error("end of text"));
    }
    Ok(value)
}

struct Parser<'s> {
    text: &'s str,
    at: usize,
}

impl Parser<'_> {
    fn error(&self, expected: &str) -> Error {
        Error::failed(format!("JSON: expected {expected} at byte {}", self.at))
    }

    fn peek(&self) -> u8 {
        self.text.as_bytes().get(self.at).copied().unwrap_or(0)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\r' | b'\n') {
            self.at += 1;
        }
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.text[self.at..].starts_with(token);
        if found {
            self.at += token.len();
        }
        found
    }

    fn value<'t>(&mut self, depth: usize) -> Result<Value<'t>> {
        if depth > MAX_DEPTH {
            return Err(self.error("less nesting"));
        }
        charge(NEW_ELEMENT)?;
        self.skip_space();
        match self.peek() {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => {
                let text = self.string()?;
                room(text.len())?;
                Ok(Value::str(text))
            }
            b'-' | b'0'..=b'9' => self.number(),
            _ if self.take("null") => Ok(Value::None),
            _ if self.take("true") => Ok(Value::Bool(true)),
            _ if self.take("false") => Ok(Value::Bool(false)),
            _ => Err(self.error("a value")),
        }
    }

    fn object<'t>(&mut self, depth: usize) -> Result<Value<'t>> {
        self.at += 1;
        let mut dict = Dict::default();
        self.skip_space();
        if self.take("}") {
            return Ok(Value::dict(dict));
        }
        loop {
            self.skip_space();
            if self.peek() != b'"' {
                return Err(self.error("a name"));
            }
            let name = self.string()?;
            self.skip_space();
            if !self.take(":") {
                return Err(self.error("':'"));
            }
            let value = self.value(depth + 1)?;
            dict.set_name(&name, value)?;
            self.skip_space();
            if self.take("}") {
                return Ok(Value::dict(dict));
            }
            if !self.take(",") {
                return Err(self.error("',' or '}'"));
            }
        }
    }

    fn array<'t>(&mut self, depth: usize) -> Result<Value<'t>> {
        self.at += 1;
        let mut items = Vec::new();
        self.skip_space();
        if self.take("]") {
            return Value::list(items);
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take("]") {
                return Value::list(items);
            }
            if !self.take(",") {
                return Err(self.error("',' or ']'"));
            }
        }
    }

    fn number<'t>(&mut self) -> Result<Value<'t>> {
        let begin = self.at;
        self.take("-");
        let digits = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        if self.at == digits || (self.text.as_bytes()[digits] == b'0' && self.at > digits + 1) {
            return Err(self.error("a number"));
        }
        let mut whole = true;
        if self.peek() == b'.' {
            whole = false;
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), b'e' | b'E') {
            whole = false;
            self.at += 1;
            if matches!(self.peek(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        let number = &self.text[begin..self.at];
        if number.len() > MAX_DIGITS {
            return Err(self.error("a shorter number"));
        }
        if whole {
            return Ok(match number.parse::<i128>() {
                Ok(i) => Value::Int(i),
                Err(_) => Value::BigInt(number.into()),
            });
        }
        number.parse().map(Value::Float).map_err(|_| self.error("a number"))
    }

    fn digits(&mut self) -> Result<()> {
        if !self.peek().is_ascii_digit() {
            return Err(self.error("a digit"));
        }
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            room_for_more(&out, plain)?;
            charge_text(plain / 2)?;
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => {
                    charge(NEW_ELEMENT)?;
                    self.at += 1;
                    self.escape(&mut out)?;
                }
                _ => return Err(self.error("the end of a string")),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<()> {
        let c = match self.peek() {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                let first = self.hex()?;
                // A lone half of a pair has no UTF-8; what a decoder of bytes would put is put in
                // its place.
                if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with("\\u") {
                    let back = self.at;
                    self.at += 2;
                    let second = self.hex()?;
                    if (0xdc00..0xe000).contains(&second) {
                        let code = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                        out.push(char::from_u32(code).unwrap_or('\u{fffd}'));
                        return Ok(());
                    }
                    self.at = back;
                }
                out.push(char::from_u32(first).unwrap_or('\u{fffd}'));
                return Ok(());
            }
            _ => return Err(self.error("an escape")),
        };
        self.at += 1;
        out.push(c);
        Ok(())
    }

    fn hex(&mut self) -> Result<u32> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or(&[]);
        if digits.len() != 4 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(self.error("four hexadecimal digits"));
        }
        let code = u32::from_str_radix(&self.text[self.at..self.at + 4], 16).unwrap_or(0xfffd);
        self.at += 4;
        Ok(code)
    }
}

/// The options of json.dumps that transformers passes on.
pub struct DumpOptions {
    pub indent: Option<String>,
    pub item_separator: String,
    pub key_separator: String,
    pub sort_keys: bool,
    pub ensure_ascii: bool,
}

pub fn dump(value: &Value<'_>, options: &DumpOptions) -> Result<String> {
    let mut out = String::new();
    write_value(&mut out, value, options, 0)?;
    Ok(out)
}

fn new_line(out: &mut String, options: &DumpOptions, depth: usize) -> Result<()> {
    if let Some(indent) = &options.indent {
        room_for_more(out, 1 + indent.len().saturating_mul(depth))?;
        out.push('\n');
        out.extend(std::iter::repeat_n(indent.as_str(), depth));
    }
    Ok(())
}

/// What stands between two items.
fn separate(out: &mut String, separator: &str) -> Result<()> {
    room_for_more(out, separator.len())?;
    out.push_str(separator);
    Ok(())
}

fn write_value(
    out: &mut String,
    value: &Value<'_>,
    options: &DumpOptions,
    depth: usize,
) -> Result<()> {
    if depth > MAX_DEPTH {
        fail!("maximum recursion depth exceeded while encoding a JSON object");
    }
    charge(NEW_ELEMENT)?;
    match value {
        Value::None => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Float(f) => out.push_str(&json_float(*f)),
        Value::Int(_) | Value::BigInt(_) => out.push_str(&text_of(value)?),
        Value::Str(s) | Value::Markup(s) => write_string(out, s, options.ensure_ascii)?,
        Value::List(items) | Value::Tuple(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    separate(out, &options.item_separator)?;
                }
                new_line(out, options, depth + 1)?;
                write_value(out, item, options, depth + 1)?;
            }
            if !items.is_empty() {
                new_line(out, options, depth)?;
            }
            out.push(']');
        }
        Value::Dict(dict) => {
            room(dict.len() * 8)?;
            let mut entries: Vec<_> = dict.iter().collect();
            if options.sort_keys {
                sort_by(&mut entries, |(key, _)| key)?;
            }
            out.push('{');
            for (i, (key, item)) in entries.iter().enumerate() {
                if i > 0 {
                    separate(out, &options.item_separator)?;
                }
                new_line(out, options, depth + 1)?;
                write_string(out, &key_text(key)?, options.ensure_ascii)?;
                separate(out, &options.key_separator)?;
                write_value(out, item, options, depth + 1)?;
            }
            if !entries.is_empty() {
                new_line(out, options, depth)?;
            }
            out.push('}');
        }
        other => fail!("Object of type {} is not JSON serializable", other.type_name()),
    }
    Ok(())
}

fn json_float(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_owned()
    } else if value.is_infinite() {
        if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned()
    } else {
        float_repr(value)
    }
}

fn key_text<'v>(key: &'v Value<'_>) -> Result<Cow<'v, str>> {
    Ok(match key {
        Value::None => "null".into(),
        Value::Bool(true) => "true".into(),
        Value::Bool(false) => "false".into(),
        Value::Float(f) => json_float(*f).into(),
        Value::Str(_) | Value::Markup(_) | Value::Int(_) | Value::BigInt(_) => text_of(key)?,
        other => fail!("keys must be str, int, float, bool or None, not {}", other.type_name()),
    })
}

fn write_string(out: &mut String, text: &str, ensure_ascii: bool) -> Result<()> {
    charge_text(NEW_ELEMENT + text.len())?;
    out.push('"');
    let is_plain = |c: char| c >= ' ' && c != '"' && c != '\\' && !(ensure_ascii && c > '~');
    let mut rest = text;
    loop {
        let plain = rest.find(|c| !is_plain(c)).unwrap_or(rest.len());
        room_for_more(out, plain + 12)?;
        out.push_str(&rest[..plain]);
        let Some(c) = rest[plain..].chars().next() else { break };
        rest = &rest[plain + c.len_utf8()..];
        charge(ELEMENT)?;
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
    Ok(())
}
