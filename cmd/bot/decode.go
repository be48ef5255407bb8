package main

import (
	"bytes"
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"

	"trill/adapters"
)

const (
	maxBorrowed = 64 << 10 // bytes of a file named by "file:PATH"
	maxSyntax   = 20       // syntax faults that are shown of one file
	maxShown    = 60       // bytes of a wrong value or key that are repeated in a fault

	unshown = "the value there" // in place of a value that is secret or came from elsewhere
)

// fault is one thing that is wrong with a configuration file, or worth a
// warning. Its text never holds a secret, nor a value that came from elsewhere.
type fault struct {
	File      string
	Line, Col int    // from 1, in characters; 0 where the file has no place for it
	Key       string // dotted; empty for the file as a whole
	Text      string // what is wrong and what to do
}

// Warning is a fault that does not keep the bot from starting.
type Warning = fault

func (f fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", f.Line, f.Col)
	}
	if f.Key != "" {
		b.WriteString(": " + f.Key)
	}
	return b.String() + ": " + f.Text
}

// configFaults is everything that is wrong with a file, in the order of its lines.
type configFaults []fault

func (fs configFaults) Error() string {
	lines := make([]string, len(fs))
	for i, f := range fs {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

func sortFaults(fs []fault) {
	slices.SortStableFunc(fs, func(a, b fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
}

// form says how a table or list was written, which decides what may be added.
type form int

const (
	closed   form = iota // a value, a { table } or a [ list ]: complete
	implicit             // a table that exists because of a header below it
	headed               // a [table], or a list made of [[tables]]
	dotted               // a table made by the dots of a key
)

// node is a table, list or value of a TOML document, with where it stands.
type node struct {
	kind  unstable.Kind // Table, Array, or that of the value
	form  form
	path  string // dotted key
	at    int    // byte offset in the document; -1: not in it
	name  int    // the same of its key
	text  string // of a value: text without its quotes, all else as written
	keys  []string
	kids  map[string]*node
	items []*node
}

// child puts n into table t under name.
func (t *node) child(name string, n *node) *node {
	if t.kids == nil {
		t.kids = map[string]*node{}
	}
	t.keys = append(t.keys, name)
	t.kids[name] = n
	return n
}

// key is one part of a dotted key.
type key struct {
	name string
	at   int
}

// document is a TOML file as a tree. go-toml tells the first fault of a file and
// then stops; the tree keeps positions, and is built past faults, so that all of
// them can be told at once.
type document struct {
	data   []byte
	root   *node
	faults []fault
	// broken says that a part could not be read: what seems to be missing may
	// be there.
	broken bool
}

// parseDocument reads data as far as it makes sense.
func parseDocument(data []byte) *document {
	d := &document{data: slices.Clip(data), root: &node{kind: unstable.Table, form: headed}}
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		d.syntax(0, "", "the file is not UTF-8; save it as UTF-8 text")
		return d
	}
	var p unstable.Parser
	begin, done := 0, 0 // where the parser started; the end of what it understood
	p.Reset(d.data)
	for table := d.root; ; {
		for p.NextExpression() {
			e := p.Expression()
			switch e.Kind {
			case unstable.KeyValue:
				d.assign(table, e, begin)
				done = begin + int(e.Raw.Offset+e.Raw.Length)
			case unstable.Table, unstable.ArrayTable:
				ks := keysOf(e, begin)
				table = d.header(ks, e.Kind == unstable.ArrayTable)
				done = ks[len(ks)-1].at
			}
		}
		broke, ok := errors.AsType[*unstable.ParserError](p.Error())
		if !ok {
			break
		}
		at := len(d.data) - cap(broke.Highlight)
		start := d.expression(done, at)
		line := d.line(start)
		if m := assignment.FindSubmatch(line); m != nil {
			d.syntax(at, join(table.path, string(m[1])), plainSyntax(broke.Message))
		} else {
			d.syntax(at, "", plainSyntax(broke.Message))
			table = &node{kind: unstable.Table} // whose keys are nobody's
		}
		if len(d.faults) >= maxSyntax {
			d.syntax(at, "", "there is more like this; mend these first")
			break
		}
		begin = d.resume(start, at)
		done = begin
		p.Reset(d.data[begin:])
	}
	return d
}

// secondOpinion asks go-toml itself about a document in which nothing is wrong,
// so that no rule of TOML is forgotten here.
func (d *document) secondOpinion() []fault {
	err := toml.Unmarshal(d.data, new(map[string]any))
	if err == nil {
		return nil
	}
	f := fault{Text: "this is not TOML"}
	if e, ok := errors.AsType[*toml.DecodeError](err); ok {
		f.Line, f.Col = e.Position()
		f.Text = plainSyntax(strings.TrimPrefix(e.Error(), "toml: "))
	}
	return []fault{f}
}

// header opens the table of a [header] or [[header]] and returns it; after a
// fault that is a table which belongs to nothing, or the earlier one of the name.
func (d *document) header(ks []key, list bool) *node {
	t := d.root
	for _, k := range ks[:len(ks)-1] {
		next := t.kids[k.name]
		switch {
		case next == nil:
			next = t.child(k.name, &node{kind: unstable.Table, form: implicit, path: join(t.path, k.name), at: k.at, name: k.at})
		case next.form == closed:
			return d.taken(next, k)
		case next.kind == unstable.Array:
			next = next.items[len(next.items)-1]
		}
		t = next
	}
	last := ks[len(ks)-1]
	old := t.kids[last.name]
	fresh := &node{kind: unstable.Table, form: headed, path: join(t.path, last.name), at: last.at, name: last.at}
	switch {
	case old == nil && list:
		t.child(last.name, &node{kind: unstable.Array, form: headed, path: fresh.path, at: last.at, name: last.at, items: []*node{fresh}})
		return fresh
	case old == nil:
		return t.child(last.name, fresh)
	case list && old.kind == unstable.Array && old.form == headed:
		old.items = append(old.items, fresh)
		return fresh
	case !list && old.form == implicit:
		old.form, old.at = headed, last.at
		return old
	case list || old.kind != unstable.Table || old.form == closed:
		return d.taken(old, last)
	}
	d.fault(last.at, old.path, "this table is there twice; first on line %d", d.lineOf(old.at))
	return old
}

// taken reports that a table is wanted where something else is.
func (d *document) taken(old *node, k key) *node {
	d.fault(k.at, old.path, "is something else already; see line %d", d.lineOf(old.at))
	return &node{kind: unstable.Table, path: old.path}
}

// assign puts a key and its value into table t.
func (d *document) assign(t *node, e *unstable.Node, begin int) {
	ks := keysOf(e, begin)
	for _, k := range ks[:len(ks)-1] {
		next := t.kids[k.name]
		if next == nil {
			next = t.child(k.name, &node{kind: unstable.Table, form: dotted, path: join(t.path, k.name), at: k.at, name: k.at})
		} else if next.form != dotted {
			next = d.taken(next, k)
		}
		t = next
	}
	last := ks[len(ks)-1]
	n := d.value(e.Value(), begin, join(t.path, last.name), last.at)
	n.name = last.at
	if old := t.kids[last.name]; old != nil {
		d.fault(last.at, old.path, "is set twice; first on line %d", d.lineOf(old.at))
		return
	}
	t.child(last.name, n)
}

// value turns a value of the parser into a node. Lists have no position of their
// own; they are where their key is.
func (d *document) value(v *unstable.Node, begin int, path string, at int) *node {
	n := &node{kind: v.Kind, path: path, at: at, text: string(v.Data)}
	if v.Raw.Length > 0 {
		n.at = begin + int(v.Raw.Offset)
	}
	for it := v.Children(); it.Next(); {
		if v.Kind == unstable.Array {
			n.items = append(n.items, d.value(it.Node(), begin, path, n.at))
		} else {
			d.assign(n, it.Node(), begin)
		}
	}
	if v.Kind == unstable.InlineTable {
		n.kind = unstable.Table
		n.close()
	}
	return n
}

// close completes a { table }: its dotted keys take no more either.
func (t *node) close() {
	t.form = closed
	for _, k := range t.kids {
		if k.kind == unstable.Table {
			k.close()
		}
	}
}

func keysOf(e *unstable.Node, begin int) []key {
	var ks []key
	for it := e.Key(); it.Next(); {
		ks = append(ks, key{string(it.Node().Data), begin + int(it.Node().Raw.Offset)})
	}
	return ks
}

func join(path, name string) string {
	if !bareKey.MatchString(name) {
		name = shorten(strconv.Quote(name))
	}
	if path == "" {
		return name
	}
	return path + "." + name
}

var (
	bareKey    = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)
	assignment = regexp.MustCompile(`^[ \t]*([A-Za-z0-9_-]+)[ \t]*=`)
	tableLine  = regexp.MustCompile(`^[ \t]*\[\[?[ \t]*[A-Za-z0-9_."' \t-]+\]`)
)

// expression returns where the expression begins that follows done and has a
// fault at at: on the first line there that is neither blank nor a comment.
func (d *document) expression(done, at int) int {
	for i := done; ; {
		end := bytes.IndexByte(d.data[i:], '\n')
		if end < 0 || i+end+1 > at {
			return d.lineStart(at)
		}
		i += end + 1
		if l := bytes.TrimSpace(d.line(i)); len(l) > 0 && l[0] != '#' {
			return i
		}
	}
}

// resume returns where reading can go on after the expression at start was found
// faulty at at: on the next line, or, if the expression may have several lines, on
// the next one that looks like the beginning of another.
func (d *document) resume(start, at int) int {
	first, i := d.line(start), start
	several := d.lineStart(at) > start || bytes.Count(first, []byte("[")) > bytes.Count(first, []byte("]")) ||
		bytes.Count(first, []byte("{")) > bytes.Count(first, []byte("}"))
	for _, quote := range []string{`"""`, `'''`} {
		if open := bytes.Index(first, []byte(quote)); open >= 0 {
			several = true
			from := min(max(at, start+open+len(quote)), len(d.data))
			if end := bytes.Index(d.data[from:], []byte(quote)); end >= 0 {
				i = from + end
			}
		}
	}
	for {
		end := bytes.IndexByte(d.data[i:], '\n')
		if end < 0 {
			return len(d.data)
		}
		i += end + 1
		if l := d.line(i); !several || assignment.Match(l) || tableLine.Match(l) {
			return i
		}
	}
}

func (d *document) lineStart(at int) int { return bytes.LastIndexByte(d.data[:at], '\n') + 1 }

// line returns the rest of the line at offset at.
func (d *document) line(at int) []byte {
	l, _, _ := bytes.Cut(d.data[at:], []byte("\n"))
	return l
}

func (d *document) lineOf(at int) int { return bytes.Count(d.data[:at], []byte("\n")) + 1 }

// place returns line and column of an offset; 0, 0 for none.
func (d *document) place(at int) (line, col int) {
	if at < 0 {
		return 0, 0
	}
	at = min(at, len(d.data))
	return d.lineOf(at), utf8.RuneCount(d.data[d.lineStart(at):at]) + 1
}

func (d *document) fault(at int, path, format string, args ...any) {
	line, col := d.place(at)
	d.faults = append(d.faults, fault{Line: line, Col: col, Key: path, Text: fmt.Sprintf(format, args...)})
}

func (d *document) syntax(at int, path, text string) {
	d.broken = true
	d.fault(at, path, "%s", text)
}

// find returns the node of a dotted key, or one that is nowhere.
func (d *document) find(path string) *node {
	n := d.root
	for name := range strings.SplitSeq(path, ".") {
		if n = n.kids[name]; n == nil {
			return &node{kind: unstable.Table, path: path, at: -1}
		}
	}
	return n
}

// plainSyntax says a parser's message to somebody who does not know TOML. No
// part of the file is repeated: it may be a secret that lacks its quotes.
func plainSyntax(msg string) string {
	for _, t := range []struct{ part, text string }{
		{"invalid UTF-8", "this is not UTF-8; save the file as UTF-8 text"},
		{"invalid character at start of key", "expected a key, as in name = \"value\", or a [table]"},
		{"unexpected character", "this is no value; text needs quotes, as in name = \"value\""},
		{"expected keyword", "this is no value; text needs quotes, as in name = \"value\""},
		{"strings must be quoted", "this is no value; text needs quotes, as in name = \"value\""},
		{"expected value", "a value is missing"},
		{"expected newline", "something follows that does not belong here; text needs quotes, and every key its own line"},
		{"expected '=' after key", "expected = after the key"},
		{"close table name", "the [table] is not closed; write [name], or [[name]] for an entry of a list"},
		{"strings cannot have new lines", "the text is not closed on this line; add the quote, or use \"\"\" for several lines"},
		{"unterminated", "the text is not closed; add the quote"},
		{"not terminated", "the text is not closed; add the three quotes"},
		{"invalid escape character", `unknown escape; write \\ for a backslash, or put the text in 'single quotes'`},
		{"control characters", `there is a control character; write it as \u0000 with its number`},
		{"carriage return", "there is a lone carriage return; save the file with ordinary line ends"},
		{"array is incomplete", "the list is not closed; add ]"},
		{"after array value", "expected a comma or ] in the list"},
		{"inline table is incomplete", "the table is not closed; add }"},
		{"too large to fit", "the number is too large"},
	} {
		if strings.Contains(msg, t.part) {
			return t.text
		}
	}
	msg, _, _ = strings.Cut(msg, ": ")
	msg, _, _ = strings.Cut(msg, " but got")
	return msg
}

// Size is a number of bytes, written "25MB" (millions) or "25MiB" (1024 twice).
type Size int64

// UnmarshalText reads a size such as "512", "64kB", "25MB", "1GiB".
func (s *Size) UnmarshalText(text []byte) error {
	digits := strings.TrimRight(string(text), "BKMGTikmgtb ")
	units := map[string]int64{
		"": 1, "b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	}
	unit, known := units[strings.ToLower(strings.TrimSpace(string(text)[len(digits):]))]
	n, err := strconv.ParseUint(digits, 10, 63)
	if err != nil || !known || int64(n) > (1<<63-1)/unit {
		return errors.New(`want a size such as "25MB"`)
	}
	*s = Size(int64(n) * unit)
	return nil
}

// tableDecoder is a table that knows itself which keys it has.
type tableDecoder interface {
	decodeTable(d *decoder, n *node)
}

// decoder fills structs from a document and collects everything that does not
// fit. Keys are the toml tags of fields; "toml:name,required" must be set, a tag
// one:"a|b" lists the values there are, and min:"1" is the least number or
// duration, zero when not said. A field that is not set keeps its default.
type decoder struct {
	file    string
	dir     string // where relative paths start
	exposed bool   // everybody on the machine may read the file
	env     func(name string) (string, bool)
	doc     *document
	// platforms makes the settings of a channel, a pointer to a struct.
	platforms map[string]func() any
	// known lists the keys of every table as it is written: "[server]".
	known map[string][]string

	faults   []fault
	warnings []fault
	borrowed []adapters.Secret // the values of "env:" and "file:"
}

func (d *decoder) fault(n *node, path, format string, args ...any) {
	d.faults = append(d.faults, d.note(n, path, format, args...))
}

func (d *decoder) warn(n *node, path, format string, args ...any) {
	d.warnings = append(d.warnings, d.note(n, path, format, args...))
}

func (d *decoder) note(n *node, path, format string, args ...any) fault {
	line, col := d.doc.place(n.at)
	return fault{File: d.file, Line: line, Col: col, Key: path, Text: fmt.Sprintf(format, args...)}
}

// blame reports a key of table t that was read but does not make sense. A key
// with a fault already is left alone: what it holds is not what was written.
func (d *decoder) blame(t *node, name, format string, args ...any) {
	f := d.note(d.where(t, name), join(t.path, name), format, args...)
	for _, old := range d.faults {
		if old.Line == f.Line && old.Col == f.Col && old.Key == f.Key {
			return
		}
	}
	d.faults = append(d.faults, f)
}

// where returns the key of a table, or the table when the key is not set.
func (d *decoder) where(t *node, name string) *node {
	if n := t.kids[name]; n != nil {
		return n
	}
	return t
}

// field is one key that a table may have.
type field struct {
	reflect.Value
	tag      reflect.StructTag
	required bool
}

func fieldsOf(structs ...reflect.Value) map[string]field {
	all := map[string]field{}
	for _, s := range structs {
		for _, f := range reflect.VisibleFields(s.Type()) {
			if name, opts, _ := strings.Cut(f.Tag.Get("toml"), ","); name != "" && name != "-" {
				all[name] = field{s.FieldByIndex(f.Index), f.Tag, opts == "required"}
			}
		}
	}
	return all
}

// schema lists the keys of structs that share one table, and of all tables in it.
// The table is written as header, such as "[engine]".
func schema(header, path string, platforms map[string]func() any, into map[string][]string, structs ...reflect.Value) {
	if _, own := structs[0].Addr().Interface().(tableDecoder); own {
		for _, settings := range platforms {
			structs = append(structs, reflect.ValueOf(settings()).Elem())
		}
	}
	for name, f := range fieldsOf(structs...) {
		into[header] = append(into[header], name)
		below := join(path, name)
		switch ft := f.Type(); {
		case isText(f.Value):
		case ft.Kind() == reflect.Map:
			schema("["+below+".NAME]", below+".NAME", platforms, into, reflect.New(ft.Elem()).Elem())
		case ft.Kind() == reflect.Slice && ft.Elem().Kind() == reflect.Struct:
			schema("[["+below+"]]", below, platforms, into, reflect.New(ft.Elem()).Elem())
		case ft.Kind() == reflect.Struct:
			schema("["+below+"]", below, platforms, into, f.Value)
		}
	}
	slices.Sort(into[header])
}

// table fills structs, which share the keys of one table. Keys that none of them
// has are a fault, unless lenient.
func (d *decoder) table(n *node, lenient bool, structs ...reflect.Value) {
	fields := fieldsOf(structs...)
	for _, name := range n.keys {
		if f, ok := fields[name]; ok {
			d.value(n.kids[name], f)
		} else if !lenient {
			d.unknown(n.kids[name], name, slices.Sorted(maps.Keys(fields)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		if f := fields[name]; f.required && n.kids[name] == nil && !d.doc.broken {
			d.fault(n, join(n.path, name), "is missing; it wants %s", want(f, join(n.path, name)))
		}
	}
}

// unknown reports a key that its table does not have.
func (d *decoder) unknown(n *node, name string, here []string) {
	at := *n
	at.at = n.name
	what, quote := "unknown key", func(name string) string { return strconv.Quote(name) }
	parent := strings.TrimSuffix(strings.TrimSuffix(n.path, join("", name)), ".")
	if n.kind == unstable.Table || n.kind == unstable.Array && n.form == headed {
		what, quote = "unknown table", func(name string) string { return "[" + join(parent, name) + "]" }
	}
	near := nearest(name, here)
	var homes []string
	for table, keys := range d.known {
		if !slices.Contains(keys, name) || table == "[]" && what == "unknown key" {
			continue
		}
		if what == "unknown table" {
			table = "[" + join(strings.Trim(table, "[]"), name) + "]"
		}
		homes = append(homes, table)
	}
	slices.Sort(homes)
	switch {
	case near != "" && distance(name, near) == 1, near != "" && len(homes) == 0:
		d.fault(&at, n.path, "%s; did you mean %s?", what, quote(near))
	case len(homes) > 0 && what == "unknown table":
		d.fault(&at, n.path, "%s; did you mean %s?", what, homes[0])
	case len(homes) > 0:
		d.fault(&at, n.path, "%s; it belongs under %s", what, strings.Join(homes[:min(len(homes), 3)], " or "))
	default:
		d.fault(&at, n.path, "%s; known here: %s", what, strings.Join(here, ", "))
	}
}

// value fills one field.
func (d *decoder) value(n *node, f field) {
	switch t := f.Type(); {
	case isText(f.Value):
		if d.is(n, unstable.String, f) {
			d.text(n, f)
		}
	case t.Kind() == reflect.Bool:
		if d.is(n, unstable.Bool, f) {
			f.SetBool(n.text == "true")
		}
	case t.Kind() == reflect.Int || t.Kind() == reflect.Int64:
		if d.is(n, unstable.Integer, f) {
			d.number(n, f)
		}
	case t.Kind() == reflect.Struct:
		if d.is(n, unstable.Table, f) {
			d.into(n, f.Value)
		}
	case t.Kind() == reflect.Map:
		if d.is(n, unstable.Table, f) {
			d.named(n, f)
		}
	case t.Kind() == reflect.Slice:
		if d.is(n, unstable.Array, f) {
			f.Set(reflect.MakeSlice(t, len(n.items), len(n.items)))
			for i, item := range n.items {
				d.value(item, field{Value: f.Index(i), tag: f.tag})
			}
		}
	default:
		panic("config: no decoder for " + t.String())
	}
}

// into fills a struct.
func (d *decoder) into(n *node, v reflect.Value) {
	if own, ok := v.Addr().Interface().(tableDecoder); ok {
		own.decodeTable(d, n)
		return
	}
	d.table(n, false, v)
}

// named fills a map of tables whose names the operator chose. They become parts
// of URLs, folders and identities, so they are plain words.
func (d *decoder) named(n *node, f field) {
	f.Set(reflect.MakeMap(f.Type()))
	for _, name := range n.keys {
		if !bareKey.MatchString(name) || len(name) > 64 {
			d.fault(n.kids[name], n.kids[name].path, "a name has only letters, digits, - and _, at most 64 of them")
		}
		entry := reflect.New(f.Type().Elem()).Elem()
		if kid := n.kids[name]; kid.kind == unstable.Table {
			d.into(kid, entry)
		} else {
			d.fault(kid, kid.path, "wants a table [%s.NAME], not %s", n.path, kindName(kid.kind))
		}
		f.SetMapIndex(reflect.ValueOf(name), entry)
	}
}

// is reports whether n has the right kind, and says so if it has not.
func (d *decoder) is(n *node, kind unstable.Kind, f field) bool {
	if n.kind == kind {
		return true
	}
	d.fault(n, n.path, "wants %s, not %s", want(f, n.path), kindName(n.kind))
	return false
}

func kindName(k unstable.Kind) string {
	switch k {
	case unstable.String:
		return "text in quotes"
	case unstable.Bool:
		return "true or false"
	case unstable.Integer:
		return "a number"
	case unstable.Float:
		return "a fraction"
	case unstable.Array:
		return "a list"
	case unstable.Table:
		return "a table"
	}
	return "a date"
}

// want says with an example what a field takes.
func want(f field, path string) string {
	if one := f.tag.Get("one"); one != "" {
		return options(strings.Split(one, "|"))
	}
	switch t := f.Type(); {
	case isDuration(t):
		return `a duration in quotes, such as "90s"`
	case t == reflect.TypeFor[Size]():
		return `a size in quotes, such as "25MB"`
	case isText(f.Value):
		return `text in quotes, such as "..." or "env:NAME"`
	case t.Kind() == reflect.Bool:
		return "true or false, without quotes"
	case t.Kind() == reflect.Struct:
		return "a table [" + path + "]"
	case t.Kind() == reflect.Map:
		return "tables [" + path + ".NAME]"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return "tables in two brackets, [[" + path + "]]"
	case t.Kind() == reflect.Slice:
		return `a list, such as ["a", "b"]`
	}
	return "a whole number, such as 10"
}

func (d *decoder) number(n *node, f field) {
	i, err := strconv.ParseInt(strings.ReplaceAll(n.text, "_", ""), 0, 64)
	least, _ := strconv.ParseInt(f.tag.Get("min"), 10, 64)
	switch {
	case err != nil || f.OverflowInt(i):
		d.fault(n, n.path, "the number is too large")
	case i < least:
		d.fault(n, n.path, "must be at least %d", least)
	default:
		f.SetInt(i)
	}
}

// isText reports whether a field is written as text in quotes.
func isText(v reflect.Value) bool {
	_, own := v.Addr().Interface().(encoding.TextUnmarshaler)
	return own || v.Kind() == reflect.String || isDuration(v.Type())
}

func isDuration(t reflect.Type) bool {
	return t == reflect.TypeFor[time.Duration]() || t == reflect.TypeFor[Duration]()
}

// text fills a field that is written as text, here or where the text says.
func (d *decoder) text(n *node, f field) {
	secret := f.Type() == reflect.TypeFor[adapters.Secret]()
	s, borrowed, ok := d.resolve(n, secret)
	if !ok {
		return
	}
	if borrowed {
		d.borrowed = append(d.borrowed, adapters.Secret(s))
	}
	shown := strconv.Quote(shorten(s))
	if borrowed || secret {
		shown = unshown
	}
	if one := f.tag.Get("one"); one != "" && !d.choice(n, s, shown, strings.Split(one, "|")) {
		return
	}
	if isDuration(f.Type()) {
		v, err := time.ParseDuration(s)
		least, _ := time.ParseDuration(f.tag.Get("min"))
		switch {
		case err != nil:
			d.fault(n, n.path, `%s is no duration; write "300ms", "90s", "10m" or "36h"`, shown)
		case v < least:
			d.fault(n, n.path, "must be at least %s", cmp.Or(f.tag.Get("min"), "0s"))
		default:
			f.SetInt(int64(v))
		}
		return
	}
	switch p := f.Addr().Interface().(type) {
	case encoding.TextUnmarshaler:
		if err := p.UnmarshalText([]byte(s)); err != nil {
			if borrowed || secret {
				err = errors.New("wants " + want(f, n.path)) // the cause may repeat the value
			}
			d.fault(n, n.path, "%v", err)
		}
	case *adapters.Secret:
		*p = adapters.Secret(s)
		switch {
		case s == "":
		case len(s) < shortestSecret:
			d.warn(n, n.path, "is shorter than %d characters, so it is not redacted where it shows up", shortestSecret)
		case !borrowed && d.exposed:
			d.warn(n, n.path, `everybody on this machine can read this file; write "env:NAME" or "file:PATH", or chmod 600 %s`, filepath.Base(d.file))
		}
	default:
		f.SetString(s)
	}
}

// choice reports whether s is one of the options, and says so if it is not.
func (d *decoder) choice(n *node, s, shown string, all []string) bool {
	if slices.Contains(all, s) {
		return true
	}
	text := "must be " + options(all)
	if near := nearest(s, all); near != "" && len(all) > 1 && shown != unshown {
		text += fmt.Sprintf(", not %s; did you mean %q?", shown, near)
	} else {
		text += ", not " + shown
	}
	d.fault(n, n.path, "%s", text)
	return false
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// resolve returns the text of n, or what "env:NAME" and "file:PATH" lead to,
// which is then borrowed.
func (d *decoder) resolve(n *node, secret bool) (s string, borrowed, ok bool) {
	if name, is := strings.CutPrefix(n.text, "env:"); is {
		s, set := d.env(name)
		switch {
		case !variable.MatchString(name): // not repeated: it may be the secret itself
			d.fault(n, n.path, `after env: comes the name of a variable, as in "env:TALK_SECRET"`)
		case !set:
			d.fault(n, n.path, `environment variable %s is not set; export it, or put the value in a file and write "file:PATH"`, shorten(name))
		case s == "" && secret:
			d.fault(n, n.path, "environment variable %s is empty", shorten(name))
		default:
			return s, true, true
		}
		return "", true, false
	}
	path, is := strings.CutPrefix(n.text, "file:")
	if !is {
		return n.text, false, true
	}
	if path == "" {
		d.fault(n, n.path, `after file: comes a path, as in "file:talk-secret.txt"`)
		return "", true, false
	}
	data, mode, err := readSmall(within(d.dir, path), maxBorrowed)
	s = strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	switch {
	case err != nil:
		d.fault(n, n.path, "file %q: %v", shorten(path), err)
	case !utf8.ValidString(s) || strings.Contains(s, "\x00"):
		d.fault(n, n.path, "file %q is not text", shorten(path))
	case s == "" && secret:
		d.fault(n, n.path, "file %q is empty", shorten(path))
	default:
		if secret && mode.Perm()&0o004 != 0 {
			d.warn(n, n.path, "everybody on this machine can read file %q; chmod 600 it", shorten(path))
		}
		return s, true, true
	}
	return "", true, false
}

// readSmall reads a regular file of at most limit bytes. An error does not
// repeat the path.
func readSmall(path string, limit int64) ([]byte, os.FileMode, error) {
	info, err := os.Stat(path) // first, since opening a pipe would wait for its writer
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("is no regular file")
	}
	if err != nil {
		return nil, 0, cause(err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, cause(err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, 0, cause(err)
	}
	if int64(len(data)) > limit {
		return nil, 0, fmt.Errorf("is larger than %d bytes", limit)
	}
	return data, info.Mode(), nil
}

func cause(err error) error {
	if e, ok := errors.AsType[*os.PathError](err); ok {
		return e.Err
	}
	return err
}

// within returns path, seen from dir when it is relative.
func within(dir, path string) string {
	if filepath.IsAbs(path) {
		return filepath.Clean(path)
	}
	return filepath.Join(dir, path)
}

func shorten(s string) string {
	if len(s) <= maxShown {
		return s
	}
	return strings.ToValidUTF8(s[:maxShown], "") + "..."
}

// options writes a choice: a, b or c.
func options(all []string) string {
	quoted := make([]string, len(all))
	for i, s := range all {
		quoted[i] = strconv.Quote(s)
	}
	last := len(quoted) - 1
	if last < 1 {
		return strings.Join(quoted, "")
	}
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// nearest returns the word that s was probably meant to be, or nothing.
func nearest(s string, words []string) string {
	best, least := "", min(len(s), maxShown)/3+1
	for _, w := range words {
		if s == w || len(s) > maxShown {
			continue
		}
		d := distance(s, w)
		if len(s) >= 3 && (strings.HasPrefix(w, s) || strings.HasPrefix(s, w) && len(w) >= 3) {
			d = 1
		}
		if d < least || d == least && best == "" && d < len(s) {
			best, least = w, d
		}
	}
	return best
}

// distance counts the letters to add, drop, change or swap between two words;
// upper case and hyphens are no difference.
func distance(a, b string) int {
	plain := strings.NewReplacer("-", "_")
	s, t := []rune(plain.Replace(strings.ToLower(a))), []rune(plain.Replace(strings.ToLower(b)))
	rows := make([][]int, len(s)+1)
	for i := range rows {
		rows[i] = make([]int, len(t)+1)
		for j := range rows[i] {
			switch {
			case i == 0 || j == 0:
				rows[i][j] = i + j
				continue
			case s[i-1] == t[j-1]:
				rows[i][j] = rows[i-1][j-1]
			default:
				rows[i][j] = 1 + min(rows[i-1][j-1], rows[i-1][j], rows[i][j-1])
			}
			if i > 1 && j > 1 && s[i-1] == t[j-2] && s[i-2] == t[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(s)][len(t)]
}
