//! Python's values as far as chat templates meet them. Lists and dicts never change: the sandbox
//! forbids it. How deep values are nested is bounded where they are made, so that whatever walks
//! through them, dropping included, may recurse.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ops::Deref;
use std::rc::Rc;

use super::budget::{charge_items, charge_text, end};
use super::dict::Dict;
use super::exec::{LoopState, Macro};
use super::walk::Walk;
use super::{fail, Result};

/// Values inside values. No data of a conversation comes near.
pub const MAX_NESTING: u16 = 300;

#[derive(Clone)]
pub enum Value<'t> {
    /// With the message of the error that its use raises. Printing, looping and asking for truth
    /// are no use. What the sandbox keeps from templates is undefined too.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i128),
    /// An integer of more than 127 bits, in decimal: it prints and compares for equality, no more.
    BigInt(Rc<str>),
    Float(f64),
    Str(Rc<str>),
    /// What `safe` and `escape` give: a str that escapes whatever is added to it.
    Markup(Rc<str>),
    List(Rc<Items<'t>>),
    Tuple(Rc<Items<'t>>),
    Dict(Rc<Dict<'t>>),
    View(Rc<View<'t>>),
    Iter(Rc<Generator<'t>>),
    /// Its fields may change, and it may be among them: the renderer empties it at the end.
    Namespace(Rc<RefCell<Dict<'t>>>),
    Macro(Rc<Macro<'t>>),
    Loop(Rc<LoopState<'t>>),
    Cycler(Rc<Cycler<'t>>),
    Joiner(Rc<Joiner>),
    Function(&'static str),
    Method(Rc<(Value<'t>, &'static str)>),
}

/// What a list or a tuple holds.
#[derive(Default)]
pub struct Items<'t> {
    items: Vec<Value<'t>>,
    depth: u16,
    /// A pair of groupby, whose members have names.
    pub is_group: bool,
}

impl<'t> Items<'t> {
    pub fn new(items: Vec<Value<'t>>) -> Result<Items<'t>> {
        charge_items(items.len())?;
        let depth = one_deeper(items.iter().map(Value::depth).max().unwrap_or(0))?;
        Ok(Items { items, depth, is_group: false })
    }
}

impl<'t> Deref for Items<'t> {
    type Target = [Value<'t>];

    fn deref(&self) -> &[Value<'t>] {
        &self.items
    }
}

pub fn one_deeper(depth: u16) -> Result<u16> {
    if depth >= MAX_NESTING {
        return end("values are nested deeper than 300");
    }
    Ok(depth + 1)
}

/// A dict's view or a range: iterates any number of times, but is no list.
pub enum View<'t> {
    Keys(Rc<Dict<'t>>),
    Values(Rc<Dict<'t>>),
    Items(Rc<Dict<'t>>),
    Range(Range),
}

impl View<'_> {
    pub fn len(&self) -> usize {
        match self {
            View::Keys(dict) | View::Values(dict) | View::Items(dict) => dict.len(),
            View::Range(range) => range.len,
        }
    }
}

/// The numbers start, start + step and so on, before stop.
#[derive(Clone, Copy)]
pub struct Range {
    pub start: i128,
    pub stop: i128,
    pub step: i128,
    pub len: usize,
}

impl Range {
    pub fn at(&self, index: usize) -> i128 {
        self.start + self.step * index as i128
    }

    /// Where a number stands among them.
    pub fn position(&self, number: i128) -> Option<usize> {
        let offset = number.checked_sub(self.start)?;
        let index = usize::try_from(offset.checked_div(self.step)?).ok()?;
        (offset % self.step == 0 && index < self.len).then_some(index)
    }
}

/// What a lazy filter gives: it can be walked through once.
pub struct Generator<'t> {
    pub items: RefCell<VecDeque<Value<'t>>>,
    depth: u16,
}

pub struct Cycler<'t> {
    pub items: Rc<Items<'t>>,
    pub at: Cell<usize>,
}

pub struct Joiner {
    pub separator: Rc<str>,
    pub used: Cell<bool>,
}

impl<'t> Value<'t> {
    pub fn str(text: impl Into<Rc<str>>) -> Value<'t> {
        Value::Str(text.into())
    }

    pub fn empty_list() -> Value<'t> {
        Value::List(Rc::new(Items { depth: 1, ..Items::default() }))
    }

    pub fn list(items: Vec<Value<'t>>) -> Result<Value<'t>> {
        Ok(Value::List(Rc::new(Items::new(items)?)))
    }

    pub fn tuple(items: Vec<Value<'t>>) -> Result<Value<'t>> {
        Ok(Value::Tuple(Rc::new(Items::new(items)?)))
    }

    pub fn dict(dict: Dict<'t>) -> Value<'t> {
        Value::Dict(Rc::new(dict))
    }

    pub fn generator(items: Vec<Value<'t>>) -> Result<Value<'t>> {
        let Items { items, depth, .. } = Items::new(items)?;
        Ok(Value::Iter(Rc::new(Generator { items: RefCell::new(items.into()), depth })))
    }

    pub fn view(view: View<'t>) -> Value<'t> {
        Value::View(Rc::new(view))
    }

    pub fn method(object: &Value<'t>, name: &'static str) -> Value<'t> {
        Value::Method(Rc::new((object.clone(), name)))
    }

    /// How many values are nested in it. What can change is emptied by the renderer before it is
    /// dropped, and counts as nothing.
    pub fn depth(&self) -> u16 {
        match self {
            Value::List(items) | Value::Tuple(items) => items.depth,
            Value::Dict(dict) => dict.depth(),
            Value::View(view) => match &**view {
                View::Keys(dict) | View::Values(dict) | View::Items(dict) => dict.depth() + 1,
                View::Range(_) => 0,
            },
            Value::Iter(generator) => generator.depth,
            Value::Loop(state) => state.items.depth,
            Value::Cycler(cycler) => cycler.items.depth,
            Value::Method(bound) => bound.0.depth() + 1,
            _ => 0,
        }
    }

    /// Whether it holds other values, or something that does.
    pub fn holds_values(&self) -> bool {
        !matches!(
            self,
            Value::Undefined(_)
                | Value::None
                | Value::Bool(_)
                | Value::Int(_)
                | Value::BigInt(_)
                | Value::Float(_)
                | Value::Str(_)
                | Value::Markup(_)
                | Value::Joiner(_)
                | Value::Function(_)
        )
    }

    /// Markup as the plain text that all but `+` take it for.
    pub fn plain(&self) -> Value<'t> {
        match self {
            Value::Markup(s) => Value::Str(s.clone()),
            other => other.clone(),
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the type, as its errors spell it.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) | Value::BigInt(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Markup(_) => "Markup",
            Value::List(_) => "list",
            Value::Tuple(items) if items.is_group => "_GroupTuple",
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(view) => match &**view {
                View::Keys(_) => "dict_keys",
                View::Values(_) => "dict_values",
                View::Items(_) => "dict_items",
                View::Range(_) => "range",
            },
            Value::Iter(_) => "generator",
            Value::Namespace(_) => "Namespace",
            Value::Macro(_) => "Macro",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
            Value::Function(_) => "function",
            Value::Method(_) => "builtin_function_or_method",
        }
    }

    /// Jinja's wording: `None` names itself, everything else is an object of its type.
    pub fn object_name(&self) -> String {
        match self {
            Value::None => "None".to_owned(),
            _ => format!("{} object", self.type_name()),
        }
    }

    /// Fails for what must not be used.
    pub fn check_defined(&self) -> Result<()> {
        match self {
            Value::Undefined(message) => fail!("{message}"),
            _ => Ok(()),
        }
    }

    pub fn truthy(&self) -> Result<bool> {
        Ok(match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(i) => *i != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) | Value::Markup(s) => !s.is_empty(),
            Value::List(items) | Value::Tuple(items) => !items.is_empty(),
            Value::Dict(dict) => !dict.is_empty(),
            Value::View(view) => view.len() != 0,
            _ => true,
        })
    }

    /// The items that a loop walks over, each charged as it comes. A generator is used up by it.
    pub fn iterate(&self) -> Result<Walk<'t>> {
        match Walk::over(self) {
            Some(walk) => Ok(walk),
            None => fail!("'{}' object is not iterable", self.type_name()),
        }
    }

    /// The same as a list of its own.
    pub fn items(&self) -> Result<Rc<Items<'t>>> {
        match self {
            Value::List(items) | Value::Tuple(items) => Ok(items.clone()),
            other => Ok(Rc::new(Items::new(other.iterate()?.rest()?)?)),
        }
    }

    pub fn len(&self) -> Result<usize> {
        Ok(match self {
            Value::Undefined(_) => 0,
            Value::Str(s) | Value::Markup(s) => {
                charge_text(s.len() / 8)?;
                s.chars().count()
            }
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::Dict(dict) => dict.len(),
            Value::View(view) => view.len(),
            Value::Loop(state) => state.items.len(),
            other => fail!("object of type '{}' has no len()", other.type_name()),
        })
    }

    /// The number that Python's `operator.index` would give.
    pub fn as_index(&self) -> Option<i128> {
        match self {
            Value::Int(i) => Some(*i),
            Value::Bool(b) => Some(*b as i128),
            _ => None,
        }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Value::Float(f) => Some(*f),
            Value::Int(i) => Some(*i as f64),
            Value::BigInt(digits) => digits.parse().ok(),
            Value::Bool(b) => Some(*b as i32 as f64),
            _ => None,
        }
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Str(s) | Value::Markup(s) => Some(s),
            _ => None,
        }
    }

    pub fn callable(&self) -> bool {
        matches!(
            self,
            Value::Macro(_)
                | Value::Function(_)
                | Value::Method(_)
                | Value::Joiner(_)
                | Value::Undefined(_)
                | Value::Loop(_)
        )
    }
}
