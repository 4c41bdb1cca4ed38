//! Python's values as far as chat templates meet them. Lists and dicts never change: the sandbox
//! forbids it.

use std::cell::RefCell;
use std::rc::Rc;

use super::dict::Dict;
use super::exec::{LoopState, Macro};
use super::{fail, Result};

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
    List(Rc<Vec<Value<'t>>>),
    Tuple(Rc<Vec<Value<'t>>>),
    Dict(Rc<Dict<'t>>),
    View(Rc<View<'t>>),
    Iter(Rc<RefCell<Generator<'t>>>),
    Namespace(Rc<RefCell<Dict<'t>>>),
    Macro(Rc<Macro<'t>>),
    Loop(Rc<LoopState<'t>>),
    Cycler(Rc<(Vec<Value<'t>>, RefCell<usize>)>),
    Joiner(Rc<(Rc<str>, RefCell<bool>)>),
    Function(&'static str),
    Method(Rc<(Value<'t>, &'static str)>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ViewKind {
    Keys,
    Values,
    Items,
    Range,
}

/// A dict's view or a range: iterates any number of times, but is no list.
pub struct View<'t> {
    pub kind: ViewKind,
    pub items: Vec<Value<'t>>,
}

/// What a lazy filter gives: it can be walked through once.
pub struct Generator<'t> {
    pub items: std::collections::VecDeque<Value<'t>>,
}

impl<'t> Value<'t> {
    pub fn str(text: impl Into<Rc<str>>) -> Value<'t> {
        Value::Str(text.into())
    }

    pub fn list(items: Vec<Value<'t>>) -> Value<'t> {
        Value::List(Rc::new(items))
    }

    pub fn tuple(items: Vec<Value<'t>>) -> Value<'t> {
        Value::Tuple(Rc::new(items))
    }

    pub fn dict(dict: Dict<'t>) -> Value<'t> {
        Value::Dict(Rc::new(dict))
    }

    pub fn generator(items: Vec<Value<'t>>) -> Value<'t> {
        Value::Iter(Rc::new(RefCell::new(Generator { items: items.into() })))
    }

    pub fn view(kind: ViewKind, items: Vec<Value<'t>>) -> Value<'t> {
        Value::View(Rc::new(View { kind, items }))
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
            Value::Tuple(_) => "tuple",
            Value::Dict(_) => "dict",
            Value::View(view) => match view.kind {
                ViewKind::Keys => "dict_keys",
                ViewKind::Values => "dict_values",
                ViewKind::Items => "dict_items",
                ViewKind::Range => "range",
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
            Value::View(view) => !view.items.is_empty(),
            _ => true,
        })
    }

    /// The items that a loop walks over. A generator is used up by it.
    pub fn iterate(&self) -> Result<Vec<Value<'t>>> {
        Ok(match self {
            Value::Undefined(_) => Vec::new(),
            Value::Str(s) | Value::Markup(s) => {
                s.chars().map(|c| Value::str(c.to_string())).collect()
            }
            Value::List(items) | Value::Tuple(items) => items.to_vec(),
            Value::Dict(dict) => dict.keys(),
            Value::View(view) => view.items.clone(),
            Value::Iter(generator) => generator.borrow_mut().items.drain(..).collect(),
            other => fail!("'{}' object is not iterable", other.type_name()),
        })
    }

    pub fn len(&self) -> Result<usize> {
        Ok(match self {
            Value::Undefined(_) => 0,
            Value::Str(s) | Value::Markup(s) => s.chars().count(),
            Value::List(items) | Value::Tuple(items) => items.len(),
            Value::Dict(dict) => dict.len(),
            Value::View(view) => view.items.len(),
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
