//! Expressions.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::rc::Rc;

use minijinja::machinery::ast;
use minijinja::value::ValueKind;

use super::args::Args;
use super::budget::{charge, charge_bytes, end, room, Budget, NEW_ELEMENT, STEP};
use super::compare::{compare, contains, equal};
use super::dict::Dict;
use super::ops::{self, Arithmetic};
use super::repr::text_of;
use super::scope::{Kept, Scope};
use super::{attributes, fail, filters, functions, is_tests, methods};
use super::{Error, Result, Template, Value};

/// Nested expressions, statements and calls together.
const MAX_DEPTH: usize = 700;

/// What they may take of the stack, in bytes. What goes deeper from there (printing, comparing,
/// dropping a value) takes less than 256 KiB more: values are nested 300 deep at most.
const MAX_STACK: usize = 768 << 10;

/// Of a message that a client sees.
pub const MAX_MESSAGE_CHARS: usize = 2000;

/// One rendering.
pub struct Renderer<'t> {
    variables: Dict<'t>,
    pub root: Rc<Scope<'t>>,
    /// Wall clock in seconds since 1970, for strftime_now.
    pub now: i64,
    /// What may change after it was made and so may hold itself, or a chain of any length.
    pub kept: Kept<'t>,
    /// Of each macro that was asked: whether its body mentions varargs and kwargs.
    pub mentioned: HashMap<*const ast::Macro<'t>, (bool, bool)>,
    /// Of blocks under way whose output is a value.
    pub captures: usize,
    /// Where the text of `{% generation %}` blocks begins and ends, in bytes.
    pub marked: Vec<(usize, usize)>,
    template_bytes: usize,
    depth: usize,
    /// Where the stack was at the start.
    stack_begin: usize,
}

impl Template {
    /// The text, and where in it the blocks `{% generation %}` begin and end, in bytes.
    pub fn render<'t>(&'t self, variables: Dict<'t>, now: i64) -> Result<(String, Vec<(usize, usize)>)> {
        let budget = Budget::start();
        let mut renderer = Renderer {
            variables,
            root: Scope::root(),
            now,
            kept: Kept::default(),
            mentioned: HashMap::new(),
            captures: 0,
            marked: Vec::new(),
            template_bytes: self.len(),
            depth: 0,
            stack_begin: stack_address(),
        };
        let root = renderer.root.clone();
        renderer.kept.scope(&root);
        let mut out = String::new();
        let result = renderer.block(self.children(), &root, &mut out);
        renderer.kept.empty_all();
        match (budget.over(), result) {
            (Some(why), _) => fail!("{why}"),
            (None, Ok(_)) => Ok((out, std::mem::take(&mut renderer.marked))),
            (None, Err(Error::Raised(text))) => Err(Error::Raised(bounded(&text))),
            (None, Err(Error::Failed(text))) => Err(Error::Failed(bounded(&text))),
        }
    }
}

/// A message as a client may see it: of a length to read, without characters that steer what shows
/// it.
fn bounded(message: &str) -> String {
    let mut out = String::new();
    for (at, c) in message.chars().enumerate() {
        if at == MAX_MESSAGE_CHARS {
            out.push_str("...");
            break;
        }
        let steers = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
        if steers || (c.is_control() && !matches!(c, '\n' | '\t')) {
            out.extend(c.escape_unicode());
        } else {
            out.push(c);
        }
    }
    out
}

/// Near the end of the stack, as it is now.
#[inline(always)]
fn stack_address() -> usize {
    let here = 0u8;
    std::hint::black_box(&raw const here) as usize
}

impl<'t> Renderer<'t> {
    pub fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        charge(STEP)?;
        if self.depth > MAX_DEPTH || self.stack_begin.abs_diff(stack_address()) > MAX_STACK {
            return end("maximum recursion depth exceeded");
        }
        Ok(())
    }

    pub fn leave(&mut self) {
        self.depth -= 1;
    }

    fn variable(&self, name: &str, scope: &Scope<'t>) -> Result<Value<'t>> {
        if let Some(value) = scope.get(name)? {
            return Ok(value);
        }
        charge_bytes(name.len().saturating_mul(4))?;
        if let Some(value) = self.variables.get_name(name) {
            return Ok(value.clone());
        }
        Ok(match functions::global(name) {
            Some(function) => Value::Function(function),
            None => Value::Undefined(format!("'{name}' is undefined").into()),
        })
    }

    pub fn eval(&mut self, expr: &'t ast::Expr<'t>, scope: &Rc<Scope<'t>>) -> Result<Value<'t>> {
        self.enter()?;
        let value = match expr {
            ast::Expr::Var(var) => self.variable(var.id, scope),
            ast::Expr::Const(constant) => convert(&constant.value),
            ast::Expr::GetAttr(attr) => {
                let object = self.eval(&attr.expr, scope)?;
                attributes::get(&object, attr.name)
            }
            ast::Expr::GetItem(item) => {
                let object = self.eval(&item.expr, scope)?;
                let key = self.eval(&item.subscript_expr, scope)?;
                ops::get_item(&object, &key)
            }
            ast::Expr::Slice(slice) => {
                let object = self.eval(&slice.expr, scope)?;
                let mut bounds = [None, None, None];
                for (bound, expr) in bounds.iter_mut().zip([&slice.start, &slice.stop, &slice.step])
                {
                    *bound = expr.as_ref().map(|expr| self.eval(expr, scope)).transpose()?;
                }
                ops::slice(&object, bounds[0].as_ref(), bounds[1].as_ref(), bounds[2].as_ref())
            }
            ast::Expr::UnaryOp(unary) => {
                let value = self.eval(&unary.expr, scope)?;
                match unary.op {
                    ast::UnaryOpKind::Not => value.truthy().map(|b| Value::Bool(!b)),
                    ast::UnaryOpKind::Neg => ops::negate(&value),
                }
            }
            ast::Expr::BinOp(binary) => self.binary(binary, scope),
            ast::Expr::Compare(compare) => self.comparison(compare, scope),
            ast::Expr::IfExpr(cond) => {
                if self.eval(&cond.test_expr, scope)?.truthy()? {
                    self.eval(&cond.true_expr, scope)
                } else if let Some(other) = &cond.false_expr {
                    self.eval(other, scope)
                } else {
                    let message = "the inline if-expression evaluated to false and no else section was defined.";
                    Ok(Value::Undefined(message.into()))
                }
            }
            ast::Expr::Filter(filter) => match &filter.expr {
                Some(input) => {
                    let input = self.eval(input, scope)?;
                    let args = self.arguments(&filter.args, scope)?;
                    filters::apply(self, filter.name, input, args)
                }
                None => Err(Error::failed("a filter without a value")),
            },
            ast::Expr::Test(test) => {
                let value = self.eval(&test.expr, scope)?;
                let args = self.arguments(&test.args, scope)?;
                is_tests::apply(test.name, &value, args).map(Value::Bool)
            }
            ast::Expr::Call(call) => {
                let callee = self.eval(&call.expr, scope)?;
                let args = self.arguments(&call.args, scope)?;
                self.call(&callee, args)
            }
            ast::Expr::List(list) => Value::list(self.all(&list.items, scope)?),
            ast::Expr::Tuple(tuple) => Value::tuple(self.all(&tuple.items, scope)?),
            ast::Expr::Map(map) => {
                let mut dict = Dict::default();
                for (key, value) in map.keys.iter().zip(&map.values) {
                    let key = self.eval(key, scope)?;
                    let value = self.eval(value, scope)?;
                    dict.insert(key, value)?;
                }
                Ok(Value::dict(dict))
            }
        };
        self.leave();
        value
    }

    fn all(&mut self, exprs: &'t [ast::Expr<'t>], scope: &Rc<Scope<'t>>) -> Result<Vec<Value<'t>>> {
        exprs.iter().map(|expr| self.eval(expr, scope)).collect()
    }

    fn binary(&mut self, binary: &'t ast::BinOp<'t>, scope: &Rc<Scope<'t>>) -> Result<Value<'t>> {
        use ast::BinOpKind::*;
        let left = self.eval(&binary.left, scope)?;
        match binary.op {
            ScAnd => {
                return if left.truthy()? { self.eval(&binary.right, scope) } else { Ok(left) }
            }
            ScOr => return if left.truthy()? { Ok(left) } else { self.eval(&binary.right, scope) },
            _ => {}
        }
        let right = self.eval(&binary.right, scope)?;
        let arithmetic = match binary.op {
            Add => Arithmetic::Add,
            Sub => Arithmetic::Sub,
            Mul => Arithmetic::Mul,
            Div => Arithmetic::Div,
            FloorDiv => Arithmetic::FloorDiv,
            Rem => Arithmetic::Rem,
            Pow => Arithmetic::Pow,
            Concat => {
                return Ok(Value::Str(ops::concatenated(&text_of(&left)?, &text_of(&right)?)?))
            }
            Eq => return relation(ast::CompareOpKind::Eq, &left, &right).map(Value::Bool),
            Ne => return relation(ast::CompareOpKind::Ne, &left, &right).map(Value::Bool),
            Lt => return relation(ast::CompareOpKind::Lt, &left, &right).map(Value::Bool),
            Lte => return relation(ast::CompareOpKind::Lte, &left, &right).map(Value::Bool),
            Gt => return relation(ast::CompareOpKind::Gt, &left, &right).map(Value::Bool),
            Gte => return relation(ast::CompareOpKind::Gte, &left, &right).map(Value::Bool),
            In => return relation(ast::CompareOpKind::In, &left, &right).map(Value::Bool),
            ScAnd | ScOr => fail!("unreachable operator"),
        };
        ops::arithmetic(arithmetic, &left, &right)
    }

    fn comparison(
        &mut self,
        compare: &'t ast::Compare<'t>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value<'t>> {
        let mut left = self.eval(&compare.expr, scope)?;
        for op in &compare.ops {
            let right = self.eval(&op.expr, scope)?;
            if !relation(op.op, &left, &right)? {
                return Ok(Value::Bool(false));
            }
            left = right;
        }
        Ok(Value::Bool(true))
    }

    pub fn arguments(
        &mut self,
        args: &'t [ast::CallArg<'t>],
        scope: &Rc<Scope<'t>>,
    ) -> Result<Args<'t>> {
        let mut bound = Args::default();
        for arg in args {
            match arg {
                ast::CallArg::Pos(expr) => bound.positional.push(self.eval(expr, scope)?),
                ast::CallArg::Kwarg(name, expr) => {
                    let value = self.eval(expr, scope)?;
                    bound.named.push(((*name).to_owned(), value));
                }
                ast::CallArg::PosSplat(expr) => {
                    for value in self.eval(expr, scope)?.iterate()? {
                        bound.positional.push(value?);
                    }
                }
                ast::CallArg::KwargSplat(expr) => match self.eval(expr, scope)? {
                    Value::Dict(dict) => {
                        for (key, value) in dict.iter() {
                            let Value::Str(name) = key else { fail!("keywords must be strings") };
                            charge(NEW_ELEMENT)?;
                            room(name.len())?;
                            bound.named.push((name.to_string(), value.clone()));
                        }
                    }
                    other => {
                        fail!("argument after ** must be a mapping, not {}", other.type_name())
                    }
                },
            }
        }
        Ok(bound)
    }

    pub fn call(&mut self, callee: &Value<'t>, args: Args<'t>) -> Result<Value<'t>> {
        match callee {
            Value::Macro(target) => self.call_macro(target, args),
            Value::Function(name) => functions::call(self, name, args.plain()),
            Value::Method(bound) => methods::call(self, &bound.0, bound.1, args.plain()),
            Value::Loop(state) => self.call_loop(state, args),
            Value::Joiner(joiner) => {
                let used = joiner.used.replace(true);
                Ok(Value::Str(if used { joiner.separator.clone() } else { "".into() }))
            }
            Value::Undefined(message) => fail!("{message}"),
            other => fail!("'{}' object is not callable", other.type_name()),
        }
    }

    /// The filters of `{% filter %}` and `{% set x | filter %}`, whose innermost has no value of
    /// its own.
    pub fn filter_chain(
        &mut self,
        chain: &'t ast::Expr<'t>,
        input: Value<'t>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<Value<'t>> {
        let ast::Expr::Filter(filter) = chain else { fail!("expected a filter") };
        let input = match &filter.expr {
            Some(inner) => self.filter_chain(inner, input, scope)?,
            None => input,
        };
        let args = self.arguments(&filter.args, scope)?;
        filters::apply(self, filter.name, input, args)
    }
}

fn relation<'t>(op: ast::CompareOpKind, left: &Value<'t>, right: &Value<'t>) -> Result<bool> {
    use ast::CompareOpKind::*;
    Ok(match op {
        Eq => equal(left, right)?,
        Ne => !equal(left, right)?,
        Lt => compare(left, right, "<")? == Some(Ordering::Less),
        Lte => matches!(compare(left, right, "<=")?, Some(Ordering::Less | Ordering::Equal)),
        Gt => compare(left, right, ">")? == Some(Ordering::Greater),
        Gte => {
            matches!(compare(left, right, ">=")?, Some(Ordering::Greater | Ordering::Equal))
        }
        In => contains(right, left)?,
        NotIn => !contains(right, left)?,
    })
}

/// A literal of the template.
fn convert<'t>(value: &minijinja::Value) -> Result<Value<'t>> {
    Ok(match value.kind() {
        ValueKind::None => Value::None,
        ValueKind::Bool => Value::Bool(value.is_true()),
        ValueKind::String => {
            let text = value.as_str().unwrap_or("");
            room(text.len())?;
            Value::str(text)
        }
        ValueKind::Number if value.is_integer() => match i128::try_from(value.clone()) {
            Ok(integer) => Value::Int(integer),
            Err(_) => Value::BigInt(value.to_string().into()),
        },
        ValueKind::Number => Value::Float(f64::try_from(value.clone()).unwrap_or(f64::NAN)),
        kind => fail!("literal of kind {kind}"),
    })
}

impl<'t> Renderer<'t> {
    /// Whether a macro's body mentions varargs and kwargs: only then does it take further arguments.
    pub fn mentions(&mut self, decl: &'t ast::Macro<'t>) -> Result<(bool, bool)> {
        if let Some(known) = self.mentioned.get(&(decl as *const _)) {
            return Ok(*known);
        }
        charge(self.template_bytes)?;
        let found = (mentions(&decl.body, "varargs"), mentions(&decl.body, "kwargs"));
        self.mentioned.insert(decl, found);
        Ok(found)
    }
}

fn mentions(body: &[ast::Stmt<'_>], name: &str) -> bool {
    body.iter().any(|statement| match statement {
        ast::Stmt::EmitExpr(s) => in_expr(&s.expr, name),
        ast::Stmt::IfCond(s) => {
            in_expr(&s.expr, name) || mentions(&s.true_body, name) || mentions(&s.false_body, name)
        }
        ast::Stmt::ForLoop(s) => {
            in_expr(&s.iter, name)
                || s.filter_expr.as_ref().is_some_and(|e| in_expr(e, name))
                || mentions(&s.body, name)
                || mentions(&s.else_body, name)
        }
        ast::Stmt::Set(s) => in_expr(&s.expr, name),
        ast::Stmt::SetBlock(s) => mentions(&s.body, name),
        ast::Stmt::FilterBlock(s) => in_expr(&s.filter, name) || mentions(&s.body, name),
        ast::Stmt::WithBlock(s) => {
            s.assignments.iter().any(|(_, e)| in_expr(e, name)) || mentions(&s.body, name)
        }
        ast::Stmt::CallBlock(s) => {
            in_expr(&s.call.expr, name)
                || in_args(&s.call.args, name)
                || mentions(&s.macro_decl.body, name)
        }
        _ => false,
    })
}

fn in_args(args: &[ast::CallArg<'_>], name: &str) -> bool {
    args.iter().any(|arg| match arg {
        ast::CallArg::Pos(e)
        | ast::CallArg::Kwarg(_, e)
        | ast::CallArg::PosSplat(e)
        | ast::CallArg::KwargSplat(e) => in_expr(e, name),
    })
}

fn in_expr(expr: &ast::Expr<'_>, name: &str) -> bool {
    let any = |exprs: &[ast::Expr<'_>]| exprs.iter().any(|e| in_expr(e, name));
    match expr {
        ast::Expr::Var(var) => var.id == name,
        ast::Expr::Const(_) => false,
        ast::Expr::Slice(s) => {
            in_expr(&s.expr, name)
                || [&s.start, &s.stop, &s.step].into_iter().flatten().any(|e| in_expr(e, name))
        }
        ast::Expr::UnaryOp(u) => in_expr(&u.expr, name),
        ast::Expr::BinOp(b) => in_expr(&b.left, name) || in_expr(&b.right, name),
        ast::Expr::Compare(c) => {
            in_expr(&c.expr, name) || c.ops.iter().any(|op| in_expr(&op.expr, name))
        }
        ast::Expr::IfExpr(i) => {
            in_expr(&i.test_expr, name)
                || in_expr(&i.true_expr, name)
                || i.false_expr.as_ref().is_some_and(|e| in_expr(e, name))
        }
        ast::Expr::Filter(f) => {
            f.expr.as_ref().is_some_and(|e| in_expr(e, name)) || in_args(&f.args, name)
        }
        ast::Expr::Test(t) => in_expr(&t.expr, name) || in_args(&t.args, name),
        ast::Expr::GetAttr(a) => in_expr(&a.expr, name),
        ast::Expr::GetItem(i) => in_expr(&i.expr, name) || in_expr(&i.subscript_expr, name),
        ast::Expr::Call(c) => in_expr(&c.expr, name) || in_args(&c.args, name),
        ast::Expr::List(l) => any(&l.items),
        ast::Expr::Tuple(t) => any(&t.items),
        ast::Expr::Map(m) => any(&m.keys) || any(&m.values),
    }
}
