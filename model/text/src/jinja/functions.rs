//! The functions that every template finds: Jinja's own and those of transformers.

use std::cell::Cell;
use std::rc::Rc;

use super::args::{integer, text, Args};
use super::budget::{charge_text, room_for_text};
use super::dict::Dict;
use super::eval::Renderer;
use super::eval::MAX_MESSAGE_CHARS;
use super::repr::text_of;
use super::value::{Cycler, Items, Joiner, Range, View};
use super::{fail, strftime, Error, Result, Value};

const NAMES: [&str; 9] = [
    "range",
    "dict",
    "namespace",
    "cycler",
    "joiner",
    "raise_exception",
    "strftime_now",
    "lipsum",
    "self",
];

/// As many numbers as the sandbox lets a range have.
const MAX_RANGE: i128 = 100_000;

pub fn global(name: &str) -> Option<&'static str> {
    NAMES.into_iter().find(|known| *known == name)
}

pub fn call<'t>(renderer: &mut Renderer<'t>, name: &str, args: Args<'t>) -> Result<Value<'t>> {
    match name {
        "range" => range(args),
        "dict" => Ok(Value::dict(dict(args)?)),
        "namespace" => {
            let fields = dict(args)?;
            Ok(renderer.kept.namespace(fields))
        }
        "cycler" if args.positional.is_empty() => fail!("at least one item has to be provided"),
        "cycler" => {
            let items = Rc::new(Items::new(args.positional)?);
            Ok(Value::Cycler(Rc::new(Cycler { items, at: Cell::new(0) })))
        }
        "joiner" => {
            let [separator] = args.bind("joiner", ["sep"], 0)?;
            let separator = text(separator, ", ", "joiner")?.into();
            Ok(Value::Joiner(Rc::new(Joiner { separator, used: Cell::new(false) })))
        }
        "raise_exception" => {
            let [message] = args.bind("raise_exception", ["message"], 1)?;
            let message = message.unwrap_or(Value::None);
            // No more of it than is shown: see `bounded`.
            Err(Error::Raised(text_of(&message)?.chars().take(MAX_MESSAGE_CHARS).collect()))
        }
        "strftime_now" => {
            let [pattern] = args.bind("strftime_now", ["format"], 1)?;
            let pattern = text(pattern, "", "strftime_now")?;
            // A directive of two characters becomes 24 at most.
            room_for_text(pattern.len().saturating_mul(12))?;
            charge_text(pattern.len().saturating_mul(100))?;
            Ok(Value::str(strftime::format(&pattern, renderer.now)))
        }
        "lipsum" => fail!("lipsum() is not supported in chat templates"),
        other => fail!("'{other}' is not callable"),
    }
}

fn range<'t>(args: Args<'t>) -> Result<Value<'t>> {
    let given = args.positional.len();
    let [first, second, step] = args.bind("range", ["", "", ""], 1)?;
    let first = integer(first, 0, "range")?;
    let (start, stop) = if given < 2 { (0, first) } else { (first, integer(second, 0, "range")?) };
    let step = integer(step, 1, "range")?;
    if step == 0 {
        fail!("range() arg 3 must not be zero");
    }
    let span = if step > 0 { stop.saturating_sub(start) } else { start.saturating_sub(stop) };
    let count = if span <= 0 { 0 } else { (span - 1) / step.saturating_abs() + 1 };
    if count > MAX_RANGE {
        fail!("Range too big. The sandbox blocks ranges larger than MAX_RANGE ({MAX_RANGE}).");
    }
    Ok(Value::view(View::Range(Range { start, stop, step, len: count as usize })))
}

fn dict<'t>(args: Args<'t>) -> Result<Dict<'t>> {
    let mut dict = Dict::default();
    if args.positional.len() > 1 {
        fail!("dict expected at most 1 argument, got {}", args.positional.len());
    }
    match args.positional.into_iter().next() {
        None => {}
        Some(Value::Dict(other)) => dict = other.copy()?,
        Some(other) => {
            for pair in other.iterate()? {
                let pair = pair?.iterate()?.take(3).collect::<Result<Vec<_>>>()?;
                let [key, value] = &pair[..] else {
                    fail!(
                        "dictionary update sequence element has length {}; 2 is required",
                        pair.len()
                    );
                };
                dict.insert(key.clone(), value.clone())?;
            }
        }
    }
    for (name, value) in args.named {
        dict.set_name(&name, value)?;
    }
    Ok(dict)
}
