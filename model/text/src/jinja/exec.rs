//! Statements: output, branches, loops, assignments, macros.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use minijinja::machinery::ast;

use super::args::Args;
use super::budget::{charge_items, end, room, MAX_TEXT, TOO_LONG};
use super::compare::equal;
use super::dict::Dict;
use super::eval::Renderer;
use super::repr::text_of;
use super::scope::Scope;
use super::source::GENERATION;
use super::value::Items;
use super::walk::Walk;
use super::{fail, Result, Value};

#[derive(PartialEq, Eq)]
pub enum Flow {
    Next,
    Continue,
    Break,
}

pub struct Macro<'t> {
    pub decl: &'t ast::Macro<'t>,
    pub scope: Rc<Scope<'t>>,
}

impl Macro<'_> {
    pub fn name(&self) -> &str {
        self.decl.name
    }
}

/// What `loop` is inside a loop.
pub struct LoopState<'t> {
    pub items: Rc<Items<'t>>,
    pub at: Cell<usize>,
    pub depth: usize,
    pub last_seen: RefCell<Option<Vec<Value<'t>>>>,
    /// For `loop(items)`: the loop itself and where it stands, when it is recursive.
    pub recursive: Option<(&'t ast::ForLoop<'t>, Rc<Scope<'t>>)>,
}

impl<'t> LoopState<'t> {
    pub fn attribute(self: &Rc<Self>, name: &str) -> Option<Value<'t>> {
        let (at, len) = (self.at.get(), self.items.len());
        let method = |name| Some(Value::method(&Value::Loop(self.clone()), name));
        Some(match name {
            "index" => Value::Int(at as i128 + 1),
            "index0" => Value::Int(at as i128),
            "revindex" => Value::Int((len - at) as i128),
            "revindex0" => Value::Int((len - at) as i128 - 1),
            "first" => Value::Bool(at == 0),
            "last" => Value::Bool(at + 1 == len),
            "length" => Value::Int(len as i128),
            "depth" => Value::Int(self.depth as i128 + 1),
            "depth0" => Value::Int(self.depth as i128),
            "previtem" if at == 0 => Value::Undefined("there is no previous item".into()),
            "previtem" => self.items[at - 1].clone(),
            "nextitem" => self
                .items
                .get(at + 1)
                .cloned()
                .unwrap_or_else(|| Value::Undefined("there is no next item".into())),
            "cycle" => return method("cycle"),
            "changed" => return method("changed"),
            _ => return None,
        })
    }
}

impl<'t> Renderer<'t> {
    pub fn block(
        &mut self,
        body: &'t [ast::Stmt<'t>],
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        self.enter()?;
        for statement in body {
            let flow = self.statement(statement, scope, out)?;
            if flow != Flow::Next {
                self.leave();
                return Ok(flow);
            }
        }
        self.leave();
        Ok(Flow::Next)
    }

    /// Adds to what a block has written.
    fn write(&mut self, out: &mut String, text: &str) -> Result<()> {
        if text.len() > MAX_TEXT - out.len().min(MAX_TEXT) {
            return end(TOO_LONG);
        }
        room(text.len())?;
        out.push_str(text);
        Ok(())
    }

    /// A block whose output is a value.
    fn capture(&mut self, body: &'t [ast::Stmt<'t>], scope: &Rc<Scope<'t>>) -> Result<Value<'t>> {
        let mut out = String::new();
        self.captures += 1;
        self.block(body, scope, &mut out)?;
        self.captures -= 1;
        room(out.len())?;
        Ok(Value::str(out))
    }

    fn statement(
        &mut self,
        statement: &'t ast::Stmt<'t>,
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        match statement {
            ast::Stmt::EmitRaw(raw) => self.write(out, raw.raw)?,
            ast::Stmt::EmitExpr(emit) => {
                let value = self.eval(&emit.expr, scope)?;
                self.write(out, &text_of(&value)?)?;
            }
            ast::Stmt::IfCond(cond) => return self.branches(cond, scope, out),
            ast::Stmt::ForLoop(node) => {
                let items = self.eval(&node.iter, scope)?;
                self.for_loop(node, items, scope, 0, out)?;
            }
            ast::Stmt::Set(set) => {
                let value = self.eval(&set.expr, scope)?;
                self.assign(&set.target, value, scope)?;
            }
            ast::Stmt::SetBlock(set) => {
                let inner = Scope::inside(scope);
                let mut value = self.capture(&set.body, &inner)?;
                if let Some(filter) = &set.filter {
                    value = self.filter_chain(filter, value, &inner)?;
                }
                self.assign(&set.target, value, scope)?;
            }
            ast::Stmt::FilterBlock(block) => {
                let inner = Scope::inside(scope);
                let value = self.capture(&block.body, &inner)?;
                let value = self.filter_chain(&block.filter, value, &inner)?;
                let Some(text) = value.as_str() else {
                    fail!("expected str instance, {} found", value.type_name())
                };
                self.write(out, text)?;
            }
            ast::Stmt::WithBlock(with) => {
                let inner = Scope::inside(scope);
                if matches!(&with.assignments[..], [(ast::Expr::Var(var), _)] if var.id == GENERATION) {
                    return self.generation(&with.body, &inner, out);
                }
                // All values are computed before any of the names means something new.
                let mut values = Vec::with_capacity(with.assignments.len());
                for (_, expr) in &with.assignments {
                    values.push(self.eval(expr, scope)?);
                }
                for ((target, _), value) in with.assignments.iter().zip(values) {
                    self.assign(target, value, &inner)?;
                }
                return self.block(&with.body, &inner, out);
            }
            ast::Stmt::Macro(decl) => {
                let scope_of_macro = self.kept.scope(scope);
                let defined = Macro { decl, scope: scope_of_macro };
                scope.set(decl.name, Value::Macro(Rc::new(defined)))?;
            }
            ast::Stmt::CallBlock(call) => {
                let scope_of_call = self.kept.scope(scope);
                let caller =
                    Value::Macro(Rc::new(Macro { decl: &call.macro_decl, scope: scope_of_call }));
                let callee = self.eval(&call.call.expr, scope)?;
                let mut args = self.arguments(&call.call.args, scope)?;
                args.named.push(("caller".to_owned(), caller));
                let value = self.call(&callee, args)?;
                self.write(out, &text_of(&value)?)?;
            }
            ast::Stmt::Block(block) => {
                let inner = Scope::inside(&self.root);
                return self.block(&block.body, &inner, out);
            }
            ast::Stmt::AutoEscape(block) => {
                if self.eval(&block.enabled, scope)?.truthy()? {
                    fail!("autoescape is not supported in chat templates");
                }
                let inner = Scope::inside(scope);
                return self.block(&block.body, &inner, out);
            }
            ast::Stmt::Continue(_) => return Ok(Flow::Continue),
            ast::Stmt::Break(_) => return Ok(Flow::Break),
            ast::Stmt::Do(_) => fail!("Encountered unknown tag 'do'."),
            ast::Stmt::Import(_)
            | ast::Stmt::FromImport(_)
            | ast::Stmt::Extends(_)
            | ast::Stmt::Include(_) => {
                fail!("no loader for this environment specified")
            }
            ast::Stmt::Template(template) => return self.block(&template.children, scope, out),
        }
        Ok(Flow::Next)
    }

    /// `{% generation %}`: where its text stands in what is rendered is kept; not that of blocks whose
    /// output is a value first, which may go anywhere.
    fn generation(
        &mut self,
        body: &'t [ast::Stmt<'t>],
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        let begin = out.len();
        let flow = self.block(body, scope, out)?;
        if self.captures == 0 {
            charge_items(1)?;
            self.marked.push((begin, out.len()));
        }
        Ok(flow)
    }

    /// `if`, and each `elif` behind it: the parser nests them, one inside the other.
    fn branches(
        &mut self,
        first: &'t ast::IfCond<'t>,
        scope: &Rc<Scope<'t>>,
        out: &mut String,
    ) -> Result<Flow> {
        let mut cond = first;
        loop {
            if self.eval(&cond.expr, scope)?.truthy()? {
                return self.block(&cond.true_body, scope, out);
            }
            match &cond.false_body[..] {
                [ast::Stmt::IfCond(next)] => cond = next,
                body => return self.block(body, scope, out),
            }
        }
    }

    pub fn for_loop(
        &mut self,
        node: &'t ast::ForLoop<'t>,
        items: Value<'t>,
        scope: &Rc<Scope<'t>>,
        depth: usize,
        out: &mut String,
    ) -> Result<()> {
        let items = match &node.filter_expr {
            None => items.items()?,
            Some(condition) => {
                let mut kept = Vec::new();
                for item in items.iterate()? {
                    let item = item?;
                    let inner = Scope::inside(scope);
                    self.assign(&node.target, item.clone(), &inner)?;
                    if self.eval(condition, &inner)?.truthy()? {
                        kept.push(item);
                    }
                }
                Rc::new(Items::new(kept)?)
            }
        };
        if items.is_empty() {
            let inner = Scope::inside(scope);
            self.block(&node.else_body, &inner, out)?;
            return Ok(());
        }
        let state = Rc::new(LoopState {
            items,
            at: Cell::new(0),
            depth,
            last_seen: RefCell::new(None),
            recursive: node.recursive.then(|| (node, self.kept.scope(scope))),
        });
        for at in 0..state.items.len() {
            state.at.set(at);
            let inner = Scope::inside(scope);
            inner.set("loop", Value::Loop(state.clone()))?;
            self.assign(&node.target, state.items[at].clone(), &inner)?;
            if self.block(&node.body, &inner, out)? == Flow::Break {
                break;
            }
        }
        Ok(())
    }

    fn assign(
        &mut self,
        target: &'t ast::Expr<'t>,
        value: Value<'t>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<()> {
        match target {
            ast::Expr::Var(var) => scope.set(var.id, value)?,
            ast::Expr::GetAttr(attr) => match self.eval(&attr.expr, scope)? {
                Value::Namespace(fields) => fields.borrow_mut().set_name(attr.name, value)?,
                _ => fail!("cannot assign attribute on non-namespace object"),
            },
            ast::Expr::List(list) => self.unpack(&list.items, value, scope)?,
            ast::Expr::Tuple(tuple) => self.unpack(&tuple.items, value, scope)?,
            other => fail!("cannot assign to {}", other.description()),
        }
        Ok(())
    }

    fn unpack(
        &mut self,
        targets: &'t [ast::Expr<'t>],
        value: Value<'t>,
        scope: &Rc<Scope<'t>>,
    ) -> Result<()> {
        let Some(walk) = Walk::over(&value) else {
            fail!("cannot unpack non-iterable {} object", value.type_name())
        };
        let items = walk.take(targets.len() + 1).collect::<Result<Vec<_>>>()?;
        if items.len() > targets.len() {
            fail!("too many values to unpack (expected {})", targets.len());
        }
        if items.len() < targets.len() {
            fail!("not enough values to unpack (expected {}, got {})", targets.len(), items.len());
        }
        for (target, item) in targets.iter().zip(items) {
            self.assign(target, item, scope)?;
        }
        Ok(())
    }

    pub fn call_macro(&mut self, callee: &Rc<Macro<'t>>, mut args: Args<'t>) -> Result<Value<'t>> {
        let decl = callee.decl;
        let inner = Scope::inside(&callee.scope);
        let names: Vec<&'t str> = decl
            .args
            .iter()
            .filter_map(|arg| match arg {
                ast::Expr::Var(var) => Some(var.id),
                _ => None,
            })
            .collect();
        let extra = args.positional.split_off(args.positional.len().min(names.len()));
        let mut given: Vec<Option<Value<'t>>> = args.positional.into_iter().map(Some).collect();
        given.resize(names.len(), None);
        let mut caller = None;
        let mut others = Dict::default();
        charge_items(args.named.len().saturating_mul(1 + names.len() / 8))?;
        for (name, value) in args.named {
            match names.iter().position(|known| *known == name) {
                Some(at) if given[at].is_some() => {
                    fail!("macro '{}' got multiple values for argument '{name}'", decl.name)
                }
                Some(at) => given[at] = Some(value),
                None if name == "caller" => caller = Some(value),
                None => others.set_name(&name, value)?,
            }
        }
        let (uses_varargs, uses_kwargs) =
            if extra.is_empty() && others.is_empty() { (true, true) } else { self.mentions(decl)? };
        if !extra.is_empty() && !uses_varargs {
            fail!("macro '{}' takes not more than {} argument(s)", decl.name, names.len());
        }
        if !others.is_empty() && !uses_kwargs {
            let unknown = others.entry(0).and_then(|(name, _)| name.as_str()).unwrap_or_default();
            fail!("macro '{}' takes no keyword argument '{unknown}'", decl.name);
        }
        match caller {
            Some(caller) => inner.set("caller", caller)?,
            None if !names.contains(&"caller") => {
                inner.set("caller", Value::Undefined("No caller defined".into()))?;
            }
            None => {}
        }
        inner.set("varargs", Value::tuple(extra)?)?;
        inner.set("kwargs", Value::dict(others))?;
        let first_default = names.len() - decl.defaults.len().min(names.len());
        for (at, (name, value)) in names.iter().zip(given).enumerate() {
            let value = match value {
                Some(value) => value,
                None if at >= first_default => {
                    self.eval(&decl.defaults[at - first_default], &inner)?
                }
                None => Value::Undefined(format!("parameter '{name}' was not provided").into()),
            };
            inner.set(name, value)?;
        }
        self.capture(&decl.body, &inner)
    }

    pub fn call_loop(&mut self, state: &Rc<LoopState<'t>>, args: Args<'t>) -> Result<Value<'t>> {
        let [items] = args.bind("loop", ["iterable"], 1)?;
        let Some((node, scope)) = state.recursive.clone() else {
            fail!("The loop must have the 'recursive' marker to be called recursively.");
        };
        let mut out = String::new();
        self.captures += 1;
        self.for_loop(node, items.unwrap_or(Value::None), &scope, state.depth + 1, &mut out)?;
        self.captures -= 1;
        Ok(Value::str(out))
    }

    pub fn loop_changed(
        &mut self,
        state: &Rc<LoopState<'t>>,
        values: Vec<Value<'t>>,
    ) -> Result<Value<'t>> {
        let same = match &*state.last_seen.borrow() {
            Some(seen) if seen.len() == values.len() => {
                let mut same = true;
                for (a, b) in seen.iter().zip(&values) {
                    same = same && equal(a, b)?;
                }
                same
            }
            _ => false,
        };
        if !same {
            if values.iter().any(Value::holds_values) {
                self.kept.loop_state(state);
            }
            state.last_seen.replace(Some(values));
        }
        Ok(Value::Bool(!same))
    }
}
