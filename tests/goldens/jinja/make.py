#!/usr/bin/env python3
"""Makes cases.jsonl: what Jinja2 answers to expressions, in the sandbox and with the settings of transformers.

    tests/goldens/jinja/make.sh        makes the virtual environment (Jinja2) and runs this

The first line has the variables, the others a template and its text, or the name of the exception that Python raises. Filters, tests and
methods are called with every kind of value, also with those that they are not made for; attributes are asked of every kind of object.
"""

import copy
import datetime
import itertools
import json
import pathlib
import re

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent

VARIABLES = {
    "text": "Hello, World  of\ttexts",
    "lines": "one\n  two\n\nthree\n",
    "word": "straße",
    "empty": "",
    "mixed": "äÖ-ʼn ǆ 漢字 🙂",
    "digits": "0042",
    "i": 7,
    "neg": -7,
    "zero": 0,
    "big": 123456789012345678901234567890,
    "f": 2.5,
    "whole": 3.0,
    "tiny": 1.5e-7,
    "t": True,
    "none": None,
    "list": [3, 1, 2],
    "mixed_list": ["b", "A", "a", "B"],
    "nested": [[1, 2], [3], []],
    "empty_list": [],
    "people": [
        {"name": "Bob", "age": 30, "tags": ["x", "y"], "at": {"city": "Rome"}},
        {"name": "alice", "age": 25, "tags": [], "at": {"city": "Oslo"}},
        {"name": "Carl", "age": 30, "tags": ["y"], "at": {"city": "rome"}},
    ],
    "map": {"b": 1, "a": 2, "c": {"d": [1, 2]}},
    "empty_map": {},
}

VALUES = ["text", "lines", "word", "empty", "mixed", "digits", "i", "neg", "big", "f", "tiny", "t", "none", "list", "mixed_list", "nested",
          "empty_list", "people", "map", "empty_map", "missing", "range(4)", "(1, 'a')", "map.items()", "list|reverse", "'<a href=\"x\">&amp;</a>'|safe"]

# Objects are printed by their addresses, which are nobody's business.
SHORT = ["text", "empty", "i", "f", "t", "none", "list", "map", "missing", "range(4)"]

FILTERS = {
    "": ["abs", "capitalize", "count", "dictsort", "e", "escape", "first", "float", "forceescape", "int", "items|list", "join", "last", "length",
         "list", "lower", "max", "min", "reverse|list", "round", "safe", "sort", "string", "striptags", "sum", "title", "tojson", "trim",
         "unique|list", "upper", "urlencode", "wordcount", "select|list", "reject|list", "default('d')", "d('d', true)", "indent",
         "truncate(9)", "center(20)", "batch(2)|list", "slice(2)|list", "map('upper')|list", "map('string')|join('|')", "format(1)",
         "replace('l', 'L')", "tojson(indent=2)"],
    "text lines word mixed digits empty": [
        "indent(2, true)", "indent(2, blank=true)", "indent('> ')", "indent(first=true, width=3)", "truncate(12, true)", "truncate(12, false, '!')",
        "truncate(12, false, '', 0)", "truncate(5, true, '..', 1)", "replace('o', '0', 1)", "replace('', '-')", "center(9)", "trim('Hs')",
        "trim('\\n')", "int(5)", "int(5, 16)", "float(1.5)", "wordcount", "title", "tojson(ensure_ascii=true)", "batch(3, '*')|list",
        "slice(3, '*')|list", "first", "last", "list|length", "sort|join", "unique|join", "unique(true)|join", "max", "min(case_sensitive=true)",
        "groupby(0)|list", "reverse", "length", "urlencode", "string|length"],
    "list mixed_list nested people range(6)": [
        "sort(reverse=true)", "sort(true, true)", "sort(case_sensitive=true)", "join(', ')", "join('-', 'name')", "join('-', attribute='age')",
        "map(attribute='name')|list", "map(attribute='at.city')|list", "map(attribute='none', default='x')|list", "map(attribute='0')|list",
        "map(attribute=0, default='-')|list", "map('length')|list", "map('default', 'x')|list", "map('join', '+')|list",
        "select('odd')|list", "reject('odd')|list", "select('gt', 1)|list", "select('in', [1, 'A'])|list", "select('string')|list",
        "selectattr('age')|list|length", "selectattr('age', 'gt', 26)|map(attribute='name')|list", "rejectattr('tags')|map(attribute='name')|list",
        "selectattr('name', 'equalto', 'Bob')|list|length", "selectattr('at.city', 'lower')|list|length", "sort(attribute='age')|map(attribute='name')|list",
        "sort(attribute='age,name')|map(attribute='name')|list", "sort(attribute='at.city')|map(attribute='name')|list", "sum", "sum(start=10)",
        "sum(attribute='age')", "sum('age', 0.5)", "sum(start=[])", "sum(start='')", "unique(attribute='age')|map(attribute='name')|list", "unique(attribute='at.city')|list|length",
        "min(attribute='age')", "max(attribute='name')", "max(true, 'name')", "groupby('age')", "groupby('at.city')|map('first')|list",
        "groupby('at.city', case_sensitive=true)|map(attribute='grouper')|list", "groupby('none', default='z')|list|length", "groupby('age')|map(attribute='list')|map('length')|list",
        "batch(2, 'f')|list", "batch(4, none)|list", "slice(2, 'f')|map('list')|list", "slice(10)|list", "batch(1)|map('first')|list", "first", "last", "reverse|first", "tojson(separators=(',', ':'))",
        "string|length"],
    "map empty_map": ["dictsort(by='key')", "dictsort(true)", "dictsort(reverse=true)", "items|list", "list", "length", "first", "last", "join('-')",
                      "tojson(indent=1)", "tojson(sort_keys=true)", "urlencode", "sort", "max", "map('upper')|list", "attr('items')|string is string", "attr('b')", "sum", "unique|list"],
    "i neg zero big f whole tiny t": ["round(2)", "round(1, 'ceil')", "round(1, 'floor')", "round(-1)", "abs", "int", "float", "string", "tojson",
                                      "format", "default(3)", "length", "e", "center(5)", "lower", "title", "attr('real')", "attr('nosuch')", "replace('1', 'x')"],
    "'%s'  '%5.2f' '%-6s|' '%03d' '%x' '%e' '%c' '%r' '%%' '%s %s' '%(a)s'": ["format(1)", "format(65)", "format(2.5)", "format('x')", "format(none)", "format(1, 2)", "format()", "format(a=3)"],
}

TESTS = ["defined", "undefined", "none", "boolean", "true", "false", "integer", "float", "number", "string", "mapping", "iterable", "sequence",
         "callable", "escaped", "lower", "upper", "odd", "even", "divisibleby(3)", "eq(7)", "equalto('a')", "ne(7)", "lt(5)", "le(7)", "gt(2)", "ge(2.5)",
         "in([7, 'text'])", "in('text')", "in(map)", "sameas(none)", "sameas(t)", "filter", "test"]

TEXT_METHODS = ["capitalize()", "casefold()", "center(25)", "center(26, '*')", "count('o')", "count('l', 3)", "count('')", "endswith('s')", "endswith(('x', 's'))", "expandtabs()", "expandtabs(3)",
                "find('o')", "find('o', 5)", "find('zz')", "find('')", "index('o')", "index('zz')", "isalnum()", "isalpha()", "isascii()", "isdecimal()", "isdigit()", "isidentifier()", "islower()", "isnumeric()",
                "isprintable()", "isspace()", "istitle()", "isupper()", "join(['a', 'b'])", "join('xyz')", "join([1])", "ljust(26, '.')", "ljust(3)", "lower()", "lstrip()", "lstrip('H0')", "partition(' ')", "partition('zz')",
                "partition('')", "removeprefix('He')", "removesuffix('s')", "replace('o', '')", "replace('', '.')", "replace('', '.', 2)", "replace('l', 'LL', 2)", "rfind('o')", "rfind('o', 0, 6)", "rindex('zz')",
                "rjust(26)", "rpartition(' ')", "rsplit()", "rsplit(' ', 1)", "rsplit(maxsplit=1)", "rstrip()", "rstrip('s\\n')", "split()", "split(' ')", "split(',', 1)", "split(maxsplit=1)", "split('')", "splitlines()",
                "splitlines(true)", "startswith('H')", "startswith('l', 2)", "startswith(())", "startswith(1)", "strip()", "strip('Hs')", "swapcase()", "title()", "upper()", "zfill(25)", "zfill(2)",
                "translate({111: 'O', 108: none})", "translate({72: 104})", "format(1)", "nosuch()", "isalnum(1)", "count()", "split(none, 1)"]

METHODS = {
    "text lines word mixed digits empty '-7' 'ŉ ß ﬁ ǆ' '١٢²Ⅷ' 'Ab 1_x' ' \\t'": TEXT_METHODS,
    "list nested (1,2,1) range(5) range(1,9,3)": ["count(1)", "count([3])", "index(1)", "index(9)", "index(2, 1)", "index(1, 1, 9)", "copy()", "append(1)", "nosuch()", "sort()"],
    "map empty_map": ["get('a')", "get('z')", "get('z', 5)", "items()", "keys()", "values()", "copy()", "pop('a')", "update({})", "get()", "get([])", "items()|list", "keys()|first", "values()|last", "fromkeys('ab', 1)", "fromkeys([1, 2])"],
    "i neg t": ["bit_length()", "bit_count()", "conjugate()", "as_integer_ratio()"],
    "f whole tiny": ["is_integer()", "conjugate()"],
}

# Every public name that Python's and Jinja's own types have, asked of every kind of value: present, or empty.
OBJECTS = ["text", "i", "f", "t", "none", "list", "(1, 2)", "map", "range(1, 9, 3)", "map.keys()", "(people|groupby('age'))[0]", "namespace(a=1)", "cycler('a', 'b')", "joiner('; ')", "'x'|safe", "missing"]
NAMES = ["grouper", "list", "real", "imag", "numerator", "denominator", "start", "stop", "step", "a", "name", "current", "pos", "sep", "used", "nosuch", "_fields", "_asdict", "__class__", "__init__", "length", "size", "0"]

# Objects of every type; each public name that it has is asked for. `or_error`: an error that names it will do as well, an empty text will not.
OF_EACH_TYPE = ["text", "i", "f", "t", "none", "list", "(1, 2)", "map", "range(9)", "map.keys()", "map.values()", "map.items()", "(people|groupby('age'))[0]", "namespace(a=1)", "cycler(1)", "joiner()",
                "'x'|safe", "[1]|map('string')", "[1]|reverse", "text.upper", "range", "dict", "namespace", "cycler", "joiner", "raise_exception", "missing"]
WITH_OBJECT = ["{%% macro m(a) %%}{%% endmacro %%}{{ m.%s is defined }}", "{%% for x in list %%}{{ loop.%s is defined }}{%% endfor %%}"]

EXPRESSIONS = """
1 + 2 * 3 - 4 / 2
7 // 2, -7 // 2, 7 // -2, 7.5 // 2, -7.5 // 2
7 % 3, -7 % 3, 7 % -3, 7.5 % 2, -7.5 % 2
2 ** 10, 2 ** -1, 2.0 ** 3, (-2) ** 3
1 / 0
1 % 0
1.5 // 0
'a' * 3, [1] * 2, (1,) * 2, 'a' * -1, 3 * 'ab'
'a' + 'b', [1] + [2], (1,) + (2,)
'a' + 1
[1] + (2,)
1 + none
none + 1
'a' ~ 1 ~ none ~ t ~ 2.0 ~ [1] ~ missing
1 == 1.0, 1 == true, '1' == 1, [1, 2] == [1, 2], (1,) == [1], {'a': 1} == {'a': 1.0}, none == false
1 < 2, 'a' < 'b', [1, 2] < [1, 3], (1,) < (1, 0), 'Z' < 'a', 2 > 1.5
1 < 'a'
[1] < [none]
{} < {}
none < 1
1 < 2 < 3, 3 > 2 > 2, 1 == 1 != 2
1 in [1, 2], 'a' in 'abc', '' in '', 'b' in map, 1 not in (2, 3), 2 in range(5), 2.0 in range(5), 'a' in range(3)
1 in 'abc'
1 in 5
[1] in map
('b', 1) in map.items(), 'b' in map.keys(), 1 in map.values(), ('b', 2) in map.items()
not 1, not '', not [], not missing, not none, not 0.0
t and 'x', zero or 'y', none and 1, missing or 'z', '' or [] or 0
'y' if t else 'n', 'y' if zero else 'n', 'y' if zero
(1 if zero) is defined
-i, -f, - 3, i - -3
-'a'
list[0], list[-1], list[5], list['x'], list[true]
text[0], text[-1], text[100], mixed[-1]
map['a'], map['z'], map.a, map.z, map['c'].d[1]
list[1:], list[:-1], list[::2], list[::-1], list[5:], list[-2:2], list[1:1], list[::-2], list[10::-1], list[:-10:-1]
text[1:4], text[::-1], mixed[2:6], text[-3:], text[::3], text[5:1:-1]
(1, 2, 3)[1:], range(10)[2:8:2], range(10)[::-1], range(5)[1:], range(10)[-3:], range(10)[8:2]
range(10)[2:8:2]|list, range(10)[::-1]|list, range(0)|list, range(5, 0, -2)|list, range(3)[7]
list[::0]
map[1:2]
list['a':]
i[0]
none[0]
missing.x
missing['x']
missing()
missing + 1
missing ~ 'x'
missing == missing, missing == none, missing == ''
missing|length, missing|list, missing|default('d'), missing is defined
missing|int
missing|tojson
missing in [1]
[missing]|first is defined
{'a': 1, 'b': [1, {'c': none}]}, {1: 2, none: 3, (1, 2): 4}, {}
{[1]: 2}
{'a': 1, 'a': 2}, {1: 'x', true: 'y', 1.0: 'z'}
[1, 'a', none, true, 2.5, [], {}, ()], (1,), ()
"it's", 'say "hi"', 'both \\' and "', 'tab\\tnew\\nback\\\\slash', '\\x00\\x7f', 'é漢🙂', '\\u200b\\u00ad'
["it's"], ['say "hi"'], ['both \\' and "'], ['tab\\tnew\\nback\\\\slash'], ['\\x00\\x7f'], ['é漢🙂'], ['\\u200b\\u00ad\\u2028']
1e16, 1e15, 123456789.123, 1e-5, 0.0001, 1e100, 1.0, -0.0, 1e22, 3.14e-10, 100000000000000000.0, 0.1 + 0.2
big, big == big, [big], big|tojson, big|string|length
12345678901234567890 * 2, 2 ** 100, 10 ** 20 // 3
'%d' % 3.7, '%5d|%-5d|%05d' % (1, 2, 3), '%+d % d' % (1, 2), '%x %X %o %#x' % (255, 255, 8, 255), '%.3f %e %g %G' % (1.5, 12345.678, 0.00001, 1e10)
'%s' % none, '%s %s' % (1, 'a'), '%r %a' % ('é', 'é'), '%5s|%-5s|%.2s' % ('a', 'b', 'cde'), '%%' % (), '%c%c' % ('a', 98), '%(a)s-%(b)d' % {'a': 1, 'b': 2}
'%s' % (1, 2)
'%s %s' % 1
'%d' % 'a'
'%y' % 1
'%(z)s' % {'a': 1}
'{} {}'.format(1, 'a'), '{0}{1}{0}'.format('a', 'b'), '{a} {b!r}'.format(a=1, b='x'), '{:>5}|{:<5}|{:^5}|{:*^7}'.format(1, 2, 3, 'x')
'{:05d} {:+d} {:,} {:x} {:#b} {:o}'.format(42, 7, 1234567, 255, 5, 8), '{:.2f} {:e} {:g} {:%} {:10.3f}|'.format(3.14159, 12345.6, 0.0001, 0.25, 2.5)
'{0[a]} {0[b][0]} {1.real}'.format({'a': 1, 'b': [2]}, 5), '{{}} {}'.format(1), '{:{}}|'.format('a', 5), '{!s:>4}'.format(t), '{:_}'.format(1234567), '{:,.2f}'.format(1234567.891)
'{}'.format()
'{a}'.format(1)
'{0.nosuch}'.format(1)
'{:d}'.format('a')
'{'.format(1)
'{a}'.format_map({'a': 5}), '{x.__class__}'.format(x=1)
'ab'.translate({97: 'A', 98: none}), 'ab'.maketrans('ab', 'xy'), 'abc'.translate('a'.maketrans('ab', 'xy', 'c'))
dict(a=1, b=2), dict([('a', 1), (2, 'b')]), dict({'a': 1}, b=2), dict()
dict(1)
dict([1])
dict([(1, 2, 3)])
namespace(a=1).a, namespace(a=1).b, namespace({'x': 2}).x
cycler('a', 'b').next(), cycler(1).current, cycler('x', 'y').items
cycler()
joiner()() ~ joiner('x')(), joiner('-').sep
range(3), range(1, 10, 3), range(-3), range(0, 10, -1), range(5, 0, -2)
range(3) == range(3), range(0) == range(1, 1), range(0, 3, 2) == range(0, 4, 2), range(3) == [0, 1, 2]
range(1, 2, 0)
range('a')
range()
range(3).index(2), range(3).count(5), range(0, 10, 3).index(9)
range(3).index(7)
map.keys(), map.values(), map.items(), empty_map.items()
map.keys() == map.keys(), map.items() == map.items(), map.values() == map.values(), dict(a=1).keys() == {'a': 2}.keys()
(people|groupby('age'))[0].grouper, (people|groupby('age'))[0].list|length, (people|groupby('age'))[0], (people|groupby('age'))[1][0]
people|groupby('age')|map(attribute='grouper')|join(',')
'<b>'|e, '<b>'|e|e, '<b>'|safe|e, '<b>'|e|upper, ('<b>'|safe) ~ '<i>', ('<b>'|safe) + '<i>', '<i>' + ('<b>'|safe), '<b>'|e|length, ['<b>'|e]
('<b>'|safe)|string, '<b>'|forceescape|forceescape, ('a'|safe) == 'a', ('a'|safe) is string, ('a'|safe) is escaped, ('a'|safe) in ['a']
true, True, false, False, none, None
true + true, true * 3, -true, true|int, true|string, true|tojson
'abc' is in 'xabcx', 5 is in [5], 'a' is sameas 'a', [] is sameas []
'upper' is filter, 'nosuch' is filter, 'defined' is test, 'nosuch' is test
[1] is filter
1 is eq 1, 1 is ne 2, 3 is gt 2, 3 is odd, 4 is divisibleby 2, none is none, 'a' is not none
7 is divisibleby(0)
'a' is odd
x is nosuch
1|nosuch
''.join(['a', 'b', missing|default('c')]), ','.join(map), '-'.join('abc')
[3, 1, 2]|sort|first, [3, 1, 2]|sort(reverse=true)|join, ['b', 'a', 'C']|sort, ['b', 'a', 'C']|sort(case_sensitive=true), [true, 0, 2]|sort
[1, 'a']|sort
[none, 1]|max
[]|max, []|min, []|first, []|last, []|sum, []|join, []|sort
[[1, 2], [3]]|sum(start=[])
[1, 2]|sum(start='')
['a', 'b']|sum
[1, '1', 1.0, true]|unique|list, ['a', 'A']|unique|list, ['a', 'A']|unique(true)|list, [[1], [1]]|map('string')|unique|list
[[1], [1]]|unique|list
[1, 2, 3, 4, 5]|batch(2)|list, [1, 2, 3, 4, 5]|slice(2)|list, [1, 2, 3, 4, 5]|slice(3, 'x')|list, []|batch(2)|list, []|slice(2)|list
'abc'|batch(0)|list
'abc'|slice(0)|list
'a b\\nc'|wordcount, 'it is'|title, 'o\\'neil mc-donald (x)'|title, 'HELLO wORLD'|capitalize, 'ǆ'|capitalize, 'ß'|upper, 'ŉ'|title
'12'|int, '12.7'|int, ' 12 '|int, '1_000'|int, '0x1f'|int(0, 16), '1f'|int(0, 16), '0b11'|int(0, 2), 'x'|int, 'x'|int(-1), ''|int, none|int, 12.7|int, -12.7|int, '1e3'|int, [1]|int
'1.5'|float, '1e3'|float, 'x'|float, 'inf'|float, 'nan'|float, '-Infinity'|float, none|float, ' 2 '|float, '1_0.5'|float, true|float
2.5|round, 3.5|round, -2.5|round, 2.675|round(2), 1234.5|round(-2), 1234|round(-2), 2.5|round(0, 'ceil'), -2.5|round(0, 'floor'), 5|round, 5|round(1), 1e20|round
2.5|round(0, 'x')
'a'|round
-5|abs, -2.5|abs, true|abs
'a'|abs
none|length
5|length
5|list
5|first
5|join
none|join
5|sort
5|reverse
'abc'|reverse, [1, 2]|reverse|list, (1, 2)|reverse|list, range(3)|reverse|list, map|reverse|list
[1, none, 'é', 2.0, {'k': [true]}]|tojson, {'a': 1}|tojson, '</script>\\u2028'|tojson, 'é'|tojson(ensure_ascii=true), {1: 2, none: 3, true: 4, 2.5: 5}|tojson, [1, [2, {}], []]|tojson(indent=2), {'b': 1, 'a': 2}|tojson(sort_keys=true), [1, 2]|tojson(separators=(',', ':')), (1, 2)|tojson, 1e400|tojson, [1]|tojson(indent='--')
{(1, 2): 3}|tojson
range(3)|tojson
map.items()|tojson
'a'|tojson(nosuch=1)
'a/b c?d=e&f'|urlencode, {'a b': 'c&d', 'e': 1}|urlencode, [('a', 1), ('b', 'ü')]|urlencode, 'ü~'|urlencode, 5|urlencode
'<p>a &amp; b</p> <!-- c -->  d'|striptags, 'a < b'|striptags, '&lt;b&gt; &quot;q&quot; &#39;'|striptags
text|replace('o', missing), text|trim(none)
text|attr('upper') is callable, map|attr('keys') is callable, text|attr('nosuch') is defined, map|attr('a') is defined
'a\\nb\\n\\nc'|indent, 'a\\nb'|indent(2), 'a\\nb'|indent(2, true), '\\n\\na'|indent(1, true, true), ''|indent, ''|indent(2, true), 'a\\r\\nb\\n'|indent
none|indent
'foo bar baz'|truncate(7), 'foo bar baz'|truncate(7, true), 'foo bar baz'|truncate(9), 'foo bar baz'|truncate(5, leeway=0), 'foo bar baz'|truncate(11), 'foobarbaz'|truncate(5, leeway=0)
'foo'|truncate(1)
strftime_now('%Y-%m-%d'), strftime_now('%d %b %Y'), strftime_now('%A %B %-d %H:%M:%S %j %p %I %y %%')
raise_exception('no')
lines.split('\\n')|map('trim')|select|join('|'), text.split()|map('length')|list, people|map(attribute='name')|map('lower')|sort|join
people|selectattr('at.city', 'equalto', 'Rome')|map(attribute='name')|first, people|rejectattr('age', 'lt', 28)|list|length, people|map('attr', 'name')|list
people|map(attribute='tags')|sum(start=[]), people|map(attribute='age')|sum / people|length, people|sort(attribute='name')|map(attribute='name')|join(' ')
1 if t else 2 if zero else 3, (1, 2)[0], [1, 2][-1], {'a': [1]}.a[0], 'abc'['upper'](), map['items']()|list
'a' 'b', "x" 'y' ~ 'z'
'\\u00e9\\x41\\t'|length, '\\\\n'|length
(1).real, i.bit_length(), f.is_integer(), t.real, i.imag, i.numerator
list.append
list.append(1)
map.update({'a': 1})
map.pop
text.__class__, text.__class__ is defined, text|attr('__class__') is defined
text.__class__.__mro__
i.__add__(1)
loop is defined, self is defined, varargs is defined, caller is defined
1 is sameas true, 1 is sameas 1, none is sameas none, t is sameas true
[1, 2] is iterable, 'a' is iterable, 5 is iterable, missing is iterable, map is iterable, none is sequence, range(2) is sequence, map.items() is sequence, (1, 2) is sequence
text.upper is callable, range is callable, 5 is callable, namespace is callable, cycler('a') is callable, joiner() is callable
'ABC'.lower is defined, text.nosuch is defined, map.items is callable, map.nosuch is defined, none.x is defined
'%s' % ['a', 1], '%s' % {'a': 1}, '%s|%s' % ((1, 2), none), '%10.3s|' % 'abcdef', '%-10s|' % 'é', '%05s' % 'a', '%+.1e' % 12345
'x' * 3 ~ '-' * 2, ('a', 'b') * 2, 0 * 'x', 'ab' * true
""".strip("\n").split("\n")

TEMPLATES = """
{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }};{% endfor %}
{% for x in list %}{{ loop.nosuch }}{{ loop.nosuch is defined }}{% endfor %}
{% for x in [1, 1, 2] %}{{ loop.changed(x) }}{{ loop.changed(x, 1) }}{% endfor %}
{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for k in map|dictsort %}{{ k }}{% endfor %}
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}{% endfor %}
{% for x in people recursive %}{{ x.name }}{% if loop.depth < 2 %}({{ loop(people[:1]) }}){% endif %}{% endfor %}
{% for x in [] %}a{% else %}b{% endfor %}{% for x in missing %}a{% else %}c{% endfor %}
{% for c in 'aé🙂' %}[{{ c }}]{% endfor %}{% for x in range(3) if x is odd %}{{ x }}{{ loop.length }}{% endfor %}
{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|length }}:{{ g[0] }}:{{ g.count(30) }};{% endfor %}
{% for grouper, items in people|groupby('at.city') %}{{ grouper }}={{ items|map(attribute='name')|join('+') }} {% endfor %}
{% set x = 1, 2 %}{{ x }}{% set a, b = x %}{{ a }}{{ b }}{% set c %}<{{ a }}>{% endset %}{{ c }}{% set d | upper %}ab{% endset %}{{ d }}
{% set ns = namespace(n=0, items=[]) %}{% for x in list %}{% set ns.n = ns.n + x %}{% set ns.items = ns.items + [x] %}{% endfor %}{{ ns.n }}{{ ns.items }}{{ ns.nosuch is defined }}
{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}{{ m(1, c=3) }}{{ m(a=1, b=2) }}{{ m() }}{{ m.name }}
{% macro m(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, z=4) }}
{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}
{% macro m(a) %}{% endmacro %}{{ m(z=1) }}
{% macro m(a) %}{{ caller(a) }}{% endmacro %}{% call(x) m(5) %}[{{ x }}]{% endcall %}
{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}
{% with a=1, b=a %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}
{% filter upper %}ab{{ 'c' }}{% endfilter %}{% filter replace('a', 'b')|title %}aab{% endfilter %}
{% if missing %}a{% elif zero %}b{% elif t %}c{% else %}d{% endif %}{% if not list %}x{% else %}y{% endif %}
{% set j = joiner('; ') %}{% for x in list %}{{ j() }}{{ x }}{% endfor %}{{ j.used }}
{% set c = cycler('a', 'b', 'c') %}{% for x in range(4) %}{{ c.next() }}{{ c.current }}{{ c.pos }}{% endfor %}{{ c.reset() }}{{ c.current }}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set g = [1, 2, 3]|map('string') %}{{ g|first }}{{ g|join }}{{ g|list }}
{% raw %}{{ x }}{% endraw %}{# comment #}{{- ' a ' -}} b {%- if t %} c {% endif -%} d
{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}{% if t %}{% set x = 3 %}{% endif %}{{ x }}
{% set d = {} %}{% set e = dict(d, a=1) %}{{ d }}{{ e }}{{ dict(e, **{'b': 2}) }}{{ dict(**e) }}
{% macro f(n) %}{% if n %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'x': 2}) }}{{ [1, 2]|map('string')|map('upper')|list }}
{% block b %}{% set x = 1 %}{{ x }}{{ list|length }}{% endblock %}
{{ 'a' if true }}{{ 'b' if false }}{{ 'c' if false else 'd' }}
""".strip("\n").split("\n")


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime(2026, 3, 5, 7, 8, 9).strftime(form)
    return env


def sources():
    for source in TEMPLATES:
        yield source
    for expression in EXPRESSIONS:
        yield "{{ (" + expression + ") }}" if "," in expression else "{{ " + expression + " }}"
    for names, filters in FILTERS.items():
        values = VALUES if not names else [name for name in names.split("  " if "'" in names else " ") if name]
        if "'%s'" in names:
            values = names.split()
            values = ["'%s'", "'%5.2f'", "'%-6s|'", "'%03d'", "'%x'", "'%e'", "'%c'", "'%r'", "'%%'", "'%s %s'", "'%(a)s'"]
        for value, call in itertools.product(values, filters):
            yield "{{ (%s)|%s }}" % (value, call)
    for value, test in itertools.product(VALUES, TESTS):
        yield "{{ (%s) is %s }}" % (value, test)
    for names, methods in METHODS.items():
        values = ["text", "lines", "word", "mixed", "digits", "empty", "'-7'", "'ŉ ß ﬁ ǆ'", "'١٢²Ⅷ'", "'Ab 1_x'", "' \\t'"] if "lines" in names else names.split()
        for value, call in itertools.product(values, methods):
            yield "{{ (%s).%s }}" % (value, call)
    for value, name in itertools.product(OBJECTS, NAMES):
        yield "{{ (%s)%s }}" % (value, "[0]" if name == "0" else "." + name)
    for left, right in itertools.product(SHORT, SHORT):
        for operator in ["+", "*", "%", "//", "<", "==", "in"]:
            yield "{{ %s %s %s }}" % (left, operator, right)


def public_names(env):
    """Pairs of an object's expression and a name that it has."""
    seen = []
    env.globals["look"] = lambda value: seen.append(value) or ""
    for expression in OF_EACH_TYPE:
        env.from_string("{{ look(" + expression + ") }}").render(**copy.deepcopy(VARIABLES))
        for name in dir(seen[-1]):
            if not name.startswith("_"):
                yield "{{ (" + expression + ")." + name + " is defined }}"
    for source in WITH_OBJECT:
        env.from_string(source.replace("%s is defined", "%s").replace("{{ m.%s }}", "{{ look(m) }}").replace("{{ loop.%s }}", "{{ look(loop) }}") % ()).render(
            **copy.deepcopy(VARIABLES)
        )
        for name in dir(seen[-1]):
            if not name.startswith("_"):
                yield source % name


def main():
    env = environment()
    seen = set()
    with open(HERE / "cases.jsonl", "w", encoding="utf-8") as out:
        out.write(json.dumps(VARIABLES, ensure_ascii=False) + "\n")
        for source, or_error in [(source, False) for source in sources()] + [(source, True) for source in public_names(env)]:
            if source in seen:
                continue
            seen.add(source)
            if "(list|reverse)|wordcount" in source:  # counts the words of an address
                continue
            row = {"source": source, "or_error": True} if or_error else {"source": source}
            try:
                row["text"] = env.from_string(source).render(**copy.deepcopy(VARIABLES))
            except Exception as error:  # whatever Python raises there is the expected answer
                row["error"] = type(error).__name__
            if re.search(" at 0x| object |<class", row.get("text", ""), re.IGNORECASE):
                continue
            out.write(json.dumps(row, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
