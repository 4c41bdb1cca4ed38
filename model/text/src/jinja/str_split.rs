//! Methods of str that make several texts of one.

use super::args::{integer, text, Args};
use super::repr::is_space;
use super::{fail, Result, Value};

pub fn split_lines(text: &str, keep_ends: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let ends = matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !ends {
            line.push(c);
            continue;
        }
        if keep_ends {
            line.push(c);
        }
        if c == '\r' && chars.peek() == Some(&'\n') {
            chars.next();
            if keep_ends {
                line.push('\n');
            }
        }
        lines.push(std::mem::take(&mut line));
    }
    if !line.is_empty() {
        lines.push(line);
    }
    lines
}

/// split and rsplit.
pub fn split<'t>(text: &str, args: Args<'t>, from_right: bool) -> Result<Value<'t>> {
    let [separator, max] = args.bind("split", ["sep", "maxsplit"], 0)?;
    let max = usize::try_from(integer(max, -1, "split")?).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match &separator {
        None | Some(Value::None) => return Ok(Value::list(split_space(text, max, from_right))),
        Some(Value::Str(s)) if s.is_empty() => fail!("empty separator"),
        Some(Value::Str(s)) if from_right => text.rsplitn(max.saturating_add(1), &**s).collect(),
        Some(Value::Str(s)) => text.splitn(max.saturating_add(1), &**s).collect(),
        Some(other) => {
            other.check_defined()?;
            fail!("must be str or None, not {}", other.type_name())
        }
    };
    if from_right {
        parts.reverse();
    }
    Ok(Value::list(parts.into_iter().map(Value::str).collect()))
}

fn split_space<'t>(text: &str, max: usize, from_right: bool) -> Vec<Value<'t>> {
    let mut parts = Vec::new();
    let mut rest = if from_right {
        text.trim_end_matches(is_space)
    } else {
        text.trim_start_matches(is_space)
    };
    while !rest.is_empty() {
        if parts.len() == max {
            // Only the outer end of what is left was cleared of spaces.
            parts.push(rest);
            break;
        }
        let cut = if from_right { rest.rfind(is_space) } else { rest.find(is_space) };
        match cut {
            None => {
                parts.push(rest);
                break;
            }
            Some(at) if from_right => {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = rest[..at].trim_end_matches(is_space);
            }
            Some(at) => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_space);
            }
        }
    }
    if from_right {
        parts.reverse();
    }
    parts.into_iter().map(Value::str).collect()
}

pub fn partition<'t>(text: &str, args: Args<'t>, from_right: bool) -> Result<Value<'t>> {
    let [separator] = args.bind("partition", [""], 1)?;
    let separator = self::text(separator, "", "partition")?;
    if separator.is_empty() {
        fail!("empty separator");
    }
    let found =
        if from_right { text.rsplit_once(&*separator) } else { text.split_once(&*separator) };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Ok(Value::tuple(parts.into_iter().map(Value::str).collect()))
}
