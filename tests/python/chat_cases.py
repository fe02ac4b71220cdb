"""Conversations and small templates on which chat templates are compared with transformers and Jinja2."""
import itertools

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather \"now\" <b>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "A city"},
                                     "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}, "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"type": "function", "id": "abcdef123", "function": {"name": "get_weather", "arguments": {"city": "K\u00f6ln", "days": 2, "x": 1.5}}}]}

USER, ASSISTANT = {"role": "user", "content": "Hello!"}, {"role": "assistant", "content": " Hi there. "}
CONVERSATIONS = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be brief."}, USER],
    "turns": [USER, ASSISTANT, {"role": "user", "content": "  And\nyou?  \n"}],
    "system_turns": [{"role": "system", "content": " S\u00fcd\u3000"}, USER, ASSISTANT, {"role": "user", "content": "more"}, ASSISTANT, USER],
    "ends_with_assistant": [USER, ASSISTANT],
    "two_users": [USER, {"role": "user", "content": "again"}],
    "assistant_first": [ASSISTANT, USER],
    "late_system": [USER, {"role": "system", "content": "late"}, ASSISTANT],
    "unknown_role": [{"role": "critic", "content": "no"}, USER],
    "empty": [],
    "empty_content": [{"role": "user", "content": ""}],
    "unicode": [{"role": "user", "content": "\u4f60\u597d \U0001f600 caf\u00e9 'quoted' \"double\" <|im_end|> {{ x }} {% y %} \\n \t|"}],
    "thinking": [USER, {"role": "assistant", "content": "<think>\nwell\n</think>\n\nYes."}, {"role": "user", "content": "/no_think go"}],
    "reasoning": [USER, {"role": "assistant", "content": "Yes.", "reasoning_content": "because"}, USER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}],
    "tools": [USER, CALL, {"role": "tool", "name": "get_weather", "tool_call_id": "abcdef123", "content": "{\"t\": 20}"},
              {"role": "assistant", "content": "Warm."}, USER],
    "null_content": [USER, {"role": "assistant", "content": None}],
}
OPTIONS = [{"add_generation_prompt": True}, {"add_generation_prompt": False}, {"add_generation_prompt": True, "tools": [TOOL]},
           {"add_generation_prompt": True, "enable_thinking": False}, {"add_generation_prompt": True, "enable_thinking": True, "tools": [TOOL, TOOL]}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
NOW = 1_790_000_000


def variables():
    for conversation, options in itertools.product(CONVERSATIONS.values(), OPTIONS):
        yield {"messages": conversation, "tools": None, "documents": None, **SPECIAL, **options}


# Templates of one feature each; the variables are those of the conversations.
FEATURES = [
    "a\n{% if true %}\n  b\n{% endif %}\nc\n", "  {% if true %} x {% endif %}  \n y", "{%- if true -%}\n z \n{%- endif -%}\n\n w\n\n",
    "x  {{- ' y ' -}}  z", "x {#- note -#} y\n{# c #}\nz", "{%+ if true %}a{%+ endif %}\n  {%+ if true +%}\nb{% endif %}",
    "{% raw %} {{ x }} {% y %}\n{% endraw %}\nz", "{%- raw -%}  a {%- endraw -%}  b", "\n\n{{ 'a' }}\n\n", "a\r\nb\rc\n",
    "{{ 'a\\n\\t\\'\\\"\\\\ \\x41 \\u00e9 \\q' }}", "{{ \"it's\" ~ 'x' 'y' }}", "{{ 1 + 2 * 3 - 4 // 3 % 2 }} {{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }}",
    "{{ 1.0 }} {{ 1e20 }} {{ 0.1 + 0.2 }} {{ 1e-7 }} {{ 5 / 1 }} {{ 123456789.125 }} {{ 1 == 1.0 }}", "{{ true }} {{ none }} {{ [1, 'a', none, true, 1.5, 'it\\'s'] }} {{ {'a': [1, {}], 'b': ()} }} {{ (1,) }} {{ (1, 2) }}",
    "{{ missing }}|{{ missing is defined }}|{{ missing is none }}|{{ missing == missing2 }}|{{ missing | default('d') }}|{{ '' | default('d', true) }}",
    "{{ missing.attribute }}", "{{ missing + 1 }}", "{{ missing() }}", "{{ none.x is defined }}", "{{ 'abc'.nothing is defined }}", "{{ messages[99] is defined }}",
    "{{ 'abc'[0] }}{{ 'abc'[-1] }}{{ 'h\u00e9llo'[1:3] }}{{ 'abcdef'[::-2] }}{{ [1,2,3][1:] }}{{ [1,2,3][:-1] }}{{ [1,2,3][::-1] }}{{ 'abc'[5:] }}{{ [1,2,3][-5:2] }}",
    "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' in 'abc' }} {{ 'x' not in ['x'] }} {{ 'k' in {'k': 1} }} {{ not 1 == 2 }} {{ 1 in missing }}",
    "{{ 'a' if true }}|{{ 'a' if false }}|{{ 'a' if false else 'b' if false else 'c' }}", "{{ 1 and 0 }} {{ 0 or 'x' }} {{ [] or none }}",
    "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}",
    "{% for i in range(10) if i % 2 %}{{ i }}{{ loop.index }}{{ loop.cycle('a', 'b') }}{% else %}none{% endfor %}", "{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in missing %}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}", "{% for k in {'a': 1} %}{{ k }}{% endfor %}{% for c in 'h\u00e9' %}{{ c }}.{% endfor %}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% for a in [1,2] %}{% for b in [3,4] %}{{ loop.depth }}{{ a }}{{ b }}{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% set x = 1 %}{% for i in range(3) %}{{ x }}{% set x = x + 1 %}{{ x }}{% endfor %}{{ x }}", "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c is defined }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (c, d) = (3, 4) %}{{ c }}{{ d }}", "{% set x %} text {{ 1 }} {% endset %}[{{ x }}]{% set y | trim | upper %} abc {% endset %}[{{ y }}]", "{% if true %}{% set x = 5 %}{% endif %}{{ x }}",
    "{% macro m(a, b='B', c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m('x') }}{{ m('x', c=3) }}{{ m() }}|{{ m(1, 2, 3) | upper }}", "{% macro m(x) %}{{ y }}{{ x }}{% set y = 9 %}{% endmacro %}{% set y = 2 %}{{ m(1) }}{{ y }}",
    "{% macro m(x) %}{% if x > 0 %}{{ x }}{{ m(x - 1) }}{% endif %}{% endmacro %}{{ m(5) }}", "{% macro box(t) %}<{{ t }}>{{ caller('in') }}</{{ t }}>{% endmacro %}{% call(w) box('b') %}body {{ w }}{% endcall %}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% filter upper %}abc {{ 'd' }}{% endfilter %}", "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}",
    "{% generation %}a{% set q = 1 %}{{ q }}{% endgeneration %}{{ q }}", "{{ '  x '|trim }}|{{ 'xxaxx'|trim('x') }}|{{ 'abc'|length }}|{{ 'h\u00e9'|length }}|{{ [3,1,2]|sort|join(',') }}|{{ [1,2]|first }}{{ [1,2]|last }}{{ []|first is defined }}",
    "{{ ['b','A','c']|sort|join }} {{ ['b','A']|sort(case_sensitive=true)|join }} {{ [1,2,3]|sum }} {{ [1,5,2]|max }} {{ [4,5]|min }} {{ 'abc'|reverse }} {{ [1,2]|reverse|list }} {{ [1,1,2]|unique|list }}",
    "{{ messages|map(attribute='role')|list }}|{{ messages|selectattr('role','equalto','user')|list|length }}|{{ messages|rejectattr('role','in',['user'])|map(attribute='role')|join(',') }}|{{ [1,2,3]|select('odd')|list }}|{{ [0,1]|reject|list }}",
    "{{ ['a','b']|map('upper')|join('-') }} {{ {'b':1,'a':2}|dictsort }} {{ {'a':1}|items|list }} {{ 'a b'|title }} {{ 'aBC'|capitalize }} {{ '3'|int + 1 }} {{ 'x'|int(7) }} {{ '2.5'|float }} {{ 2.6|int }} {{ -3|abs }} {{ 2.5|round }} {{ 3|string + 'x' }}",
    "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent('>', blank=true) }}", "{{ 'a<b>&'|e }} {{ 'aXbX'|replace('X','y') }} {{ 'aXbX'|replace('X','y',1) }}",
    "{{ {'a': [1, 2.5, 'x\"y\u00e9\\n', none, true], 'b': {}} | tojson }} {{ [] | tojson }}", "{{ {'b': [1, {'c': []}], 'a': 1} | tojson(indent=2) }} {{ {'b': 1, 'a': '\u00e9\U0001f600'} | tojson(ensure_ascii=true, sort_keys=true) }} {{ [1, 2] | tojson(separators=(',', ':')) }}",
    "{{ ' a b  c '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a b c '.split(none, 1) }} {{ ' a b c '.rsplit(none, 1) }} {{ 'a\nb\r\nc'.splitlines() }} {{ ''.split(',') }} {{ ''.split() }}",
    "{{ ' x '.strip() }}|{{ 'xyx'.strip('x') }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'Ab'.upper() }}{{ 'Ab'.lower() }}{{ 'ab c'.title() }}{{ 'abc'.startswith('a') }}{{ 'abc'.endswith(('x','c')) }}{{ 'abcb'.find('b') }}{{ 'abcb'.rfind('b') }}{{ 'abab'.count('ab') }}",
    "{{ 'a-b'.replace('-', '+') }} {{ '-'.join(['a','b']) }} {{ 'prefix'.removeprefix('pre') }} {{ 'x.py'.removesuffix('.py') }} {{ '12'.isdigit() }} {{ 'aa'.replace('', '.') }}",
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'items': 3}['items'] }} {{ [1,2].index(2) }}",
    "{{ messages is iterable }} {{ 'a' is string }} {{ 1 is number }} {{ true is number }} {{ true is integer }} {{ {} is mapping }} {{ [] is sequence }} {{ 'a' is sequence }} {{ none is none }} {{ missing is undefined }} {{ 1.5 is float }} {{ true is boolean }} {{ false is false }} {{ 4 is divisibleby 2 }} {{ 3 is odd }} {{ 'a' is in ['a'] }} {{ 1 is eq 1 }} {{ 2 is gt(1) }} {{ m is callable }} {{ range is callable }} {{ 'ab' is lower }}",
    "{{ x is defined and y is not defined }} {{ not x is defined }} {{ messages is not none and messages|length > 0 }}", "{{ raise_exception('No: ' ~ 1) }}", "{{ strftime_now('%d %b %Y %H:%M') }}", "{{ dict(a=1, b='x') }} {{ range(5)|list }} {{ range(5, 0, -2)|list }}",
    "{{ 'a' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' + 'b' }} {{ 'a' ~ 1 ~ none }}", "{{ 'a' + 1 }}", "{{ 1 | unknown }}", "{{ 1 is unknown }}", "{% unknown %}", "{{ 1 +", "{% if %}", "{% for x in [1] %}", "{{ 'abc }}", "{{ [1, 2 }}", "{% endif %}", "{{ 5 + }}",
    "{{ messages[0]['role'] }}{{ messages[-1].content }}{{ messages[0].get('name', 'n') }}{{ messages[1:]|length }}{{ messages.0.role }}", "{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}", "{{ -messages|length }} {{ (1, 2)|length }} {{ - 3 }} {{ +3 }}",
    "{% set x = messages | selectattr('role', '==', 'user') | list %}{{ x | length }}{% if x %}{{ x[0].content }}{% endif %}", "{{ '%s' is string }}{{ {'a': {'b': 1}}.a.b }}{{ [[1, 2], [3]]|map('first')|list }}{{ [{'a': {'b': 4}}]|map(attribute='a.b')|list }}",
    "{{ 'a{}b{}c{{}}'.format(1, 'x') }}{{ '{1}{0}'.format('a', 'b') }}{{ '{n}'.format(n=2) }}{{ none|select('odd')|list }}{{ {1: 'a', 2: 'b'}[2] }}{{ {1: 'a'} | tojson }}",
    "{% if messages %}a{% elif tools %}b{% else %}c{% endif %}{% if not messages %}a{% elif tools is none %}b{% else %}c{% endif %}", "{{ '\\n'.join(['a', 'b']) }}{{ ('a', 'b')|join(' ') }}{{ 1 if messages else 2 }}{{ [1, 2, 3] == [1, 2, 3] }}{{ {'a': 1} == {'a': 1.0} }}",
    # Filters that give generators: true whatever they hold, and each item comes once.
    "{% if messages|selectattr('role','equalto','nobody') %}SYS{% else %}none{% endif %}", "{% set s = messages|rejectattr('role') %}{{ 'none' if not s }}{% for m in s %}x{% endfor %}",
    "{% set u = messages|selectattr('role','equalto','user') %}{% for m in u %}[{{ m.content }}]{% endfor %}{% for m in u %}<{{ m.content }}>{% endfor %}", "{% set r = messages|map(attribute='role') %}{{ 'user' in r }}{{ 'user' in r }}",
    "{% set r = [1,2,3,4]|map('string') %}{{ '2' in r }}{{ r|first }}{{ r|join }}{{ r|join }}{{ r|first is defined }}", "{% set r = [1,2,3]|reverse %}{{ r|list }}{{ r|list }}{{ r|reverse|list }}", "{% set r = [1,2]|map('string')|reverse %}{{ r }}{{ r|list }}",
    "{% set r = [1,1]|unique %}{{ r is iterable }}{{ r is sequence }}{{ r[0] is defined }}{{ r == r }}{{ r == [1] }}{{ r|sum }}{{ r|sum }}", "{{ [1]|map('string')|length }}", "{{ [1]|select|last }}", "{{ [1]|select|tojson }}",
    "{{ ([1]|select) + [2] }}", "{% set a, b = [1,2]|map('string') %}{{ a ~ b }}{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{{ loop.length }}{% endfor %}{% set i = {}|items %}{{ 'yes' if i }}{{ {'b': 1, 'a': 2}|dictsort }}",
    "{% for i in [1,2] %}{% continue %}{% else %}E{% endfor %}{% for i in [1,2] %}{{ i }}{% break %}{% else %}E{% endfor %}{% for i in [1,2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% else %}E{% endfor %}",
    "{{ missing|int }}", "{{ missing|float }}", "{{ none|int }}{{ 'x'|int(3) }}{{ none|float(1.5) }}", "{{ ['\u2028', '\u00a0\u00ad', '\u200b', 'h\u00e9\ud55c', '\U0001f600\U000e0001'] }}",
]
