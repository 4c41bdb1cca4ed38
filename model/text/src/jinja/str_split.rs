//! Methods of str that make several texts of one.

use super::args::{integer, text, Args};
use super::budget::{charge, charge_text, room, NEW_ELEMENT};
use super::repr::is_space;
use super::{fail, Result, Value};

pub fn ends_line(c: char) -> bool {
    matches!(
        c,
        '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
    )
}

/// The lines of a text, one by one.
pub fn split_lines(text: &str, keep_ends: bool) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = rest.find(ends_line).unwrap_or(rest.len());
        let width = match &rest[at..] {
            end if end.starts_with("\r\n") => 2,
            end => end.chars().next().map_or(0, char::len_utf8),
        };
        let line = &rest[..if keep_ends { at + width } else { at }];
        rest = &rest[at + width..];
        Some(line)
    })
}

/// A list of the parts that an iterator finds in a text.
pub fn list_of<'t, 's>(parts: impl Iterator<Item = &'s str>) -> Result<Vec<Value<'t>>> {
    let mut list = Vec::new();
    for part in parts {
        charge(NEW_ELEMENT + part.len() / 16)?;
        list.push(Value::str(part));
    }
    Ok(list)
}

/// split and rsplit.
pub fn split<'t>(text: &str, args: Args<'t>, from_right: bool) -> Result<Value<'t>> {
    let [separator, max] = args.bind("split", ["sep", "maxsplit"], 0)?;
    let max = usize::try_from(integer(max, -1, "split")?).unwrap_or(usize::MAX);
    charge_text(text.len())?;
    let mut parts = match &separator {
        None | Some(Value::None) if from_right => list_of(Words::from_right(text, max))?,
        None | Some(Value::None) => list_of(Words::from_left(text, max))?,
        Some(Value::Str(s)) if s.is_empty() => fail!("empty separator"),
        Some(Value::Str(s)) if from_right => list_of(text.rsplitn(max.saturating_add(1), &**s))?,
        Some(Value::Str(s)) => list_of(text.splitn(max.saturating_add(1), &**s))?,
        Some(other) => {
            other.check_defined()?;
            fail!("must be str or None, not {}", other.type_name())
        }
    };
    if from_right {
        parts.reverse();
    }
    Value::list(parts)
}

/// Parts between white space, at most so many times cut.
struct Words<'s> {
    rest: &'s str,
    cuts_left: usize,
    from_right: bool,
}

impl<'s> Words<'s> {
    fn from_left(text: &'s str, cuts_left: usize) -> Words<'s> {
        Words { rest: text.trim_start_matches(is_space), cuts_left, from_right: false }
    }

    fn from_right(text: &'s str, cuts_left: usize) -> Words<'s> {
        Words { rest: text.trim_end_matches(is_space), cuts_left, from_right: true }
    }
}

impl<'s> Iterator for Words<'s> {
    type Item = &'s str;

    fn next(&mut self) -> Option<&'s str> {
        let rest = self.rest;
        if rest.is_empty() {
            return None;
        }
        let cut = if self.cuts_left == 0 {
            // Only the outer end of what is left was cleared of spaces.
            None
        } else if self.from_right {
            rest.rfind(is_space)
        } else {
            rest.find(is_space)
        };
        self.cuts_left = self.cuts_left.saturating_sub(1);
        let Some(at) = cut else {
            self.rest = "";
            return Some(rest);
        };
        if !self.from_right {
            self.rest = rest[at..].trim_start_matches(is_space);
            return Some(&rest[..at]);
        }
        let width = rest[at..].chars().next().map_or(1, char::len_utf8);
        self.rest = rest[..at].trim_end_matches(is_space);
        Some(&rest[at + width..])
    }
}

pub fn partition<'t>(text: &str, args: Args<'t>, from_right: bool) -> Result<Value<'t>> {
    let [separator] = args.bind("partition", [""], 1)?;
    let separator = self::text(separator, "", "partition")?;
    if separator.is_empty() {
        fail!("empty separator");
    }
    charge_text(text.len())?;
    room(text.len())?;
    let found =
        if from_right { text.rsplit_once(&*separator) } else { text.split_once(&*separator) };
    let parts = match found {
        Some((before, after)) => [before, &separator, after],
        None if from_right => ["", "", text],
        None => [text, "", ""],
    };
    Value::tuple(parts.into_iter().map(Value::str).collect())
}
