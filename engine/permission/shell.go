package permission

import (
	"path"
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

const (
	// maxLine is how long a command line may be to be judged, in bytes, and
	// maxOpen how many brackets it may open: a parser goes as deep as they do.
	maxLine = 64 << 10
	maxOpen = 4096
	// maxParts bounds what is shown and judged of one line.
	maxParts = 256
	// maxForms bounds what rules are matched with, in bytes: commands within
	// commands would make it grow with the square of the line.
	maxForms = 512 << 10
	// maxDepth is how deep commands that run commands are looked into.
	maxDepth = 8
)

// The reasons for which no rule for particular commands can allow a part. They
// are shown after the part.
const (
	whyTooLong   = "it is too long to be judged"
	whyParse     = "it cannot be read as a shell command"
	whyDialect   = "sh and bash would read it differently"
	whyProgram   = "which program runs shows only when it runs"
	whyText      = "it runs text that is not judged as a command"
	whyState     = "it changes what later commands mean"
	whyVariable  = "it sets a variable that changes what commands do"
	whyComputed  = "it computes something that may run commands"
	whyArgument  = "its arguments show only when it runs"
	whyRedirect  = "where it reads or writes shows only when it runs"
	whyFolder    = "the folder it writes to shows only when it runs"
	whyTooNested = "it is nested too deep to be judged"
)

// readLine returns the parts of a command line, at least one. sh and bash do
// not read every line alike, and either may run it: the parts are those of both.
func readLine(line string) []part {
	if len(line) > maxLine || strings.Count(line, "(")+strings.Count(line, "[")+strings.Count(line, "{") > maxOpen {
		r := &reader{budget: maxForms}
		r.opaque(line[:min(len(line), 2*maxShown)], whyTooLong)
		return r.parts
	}
	if strings.ContainsAny(line, "\x00\r") {
		r := &reader{budget: maxForms}
		r.opaque(line, whyDialect)
		r.parts[0].forms = append(r.parts[0].forms, r.scraps(line)...)
		return r.parts
	}
	bash, errBash := readAs(line, syntax.LangBash)
	sh, errSh := readAs(line, syntax.LangPOSIX)
	parts := bash.parts
	if errBash != nil || errSh != nil {
		r := &reader{budget: maxForms}
		why := whyParse
		if errBash == nil || errSh == nil {
			why = whyDialect
		}
		r.opaque(line, why)
		r.parts[0].forms = append(r.parts[0].forms, r.scraps(line)...)
		parts = append(parts, r.parts...)
	}
	type key struct {
		kind          kind
		text, unclear string
	}
	seen := map[key]bool{}
	for _, p := range bash.parts {
		seen[key{p.kind, p.text, p.unclear}] = true
	}
	for _, p := range sh.parts {
		if !seen[key{p.kind, p.text, p.unclear}] {
			parts = append(parts, p)
		}
	}
	if len(parts) == 0 {
		r := &reader{budget: maxForms}
		r.add(part{kind: inert, text: strings.TrimSpace(line)}, certain(inert, shellTool, ""))
		return r.parts
	}
	return parts
}

// reader collects the parts of a line.
type reader struct {
	line   string
	posix  bool
	parts  []part
	budget int // bytes of forms that may still be made
	depth  int
	full   bool
}

// readAs reads a line in one dialect. What was read before an error counts.
func readAs(line string, lang syntax.LangVariant) (r *reader, err error) {
	r = &reader{line: line, posix: lang == syntax.LangPOSIX, budget: maxForms}
	return r, r.read(line, lang)
}

func (r *reader) read(line string, lang syntax.LangVariant) error {
	file, err := syntax.NewParser(syntax.Variant(lang)).Parse(strings.NewReader(line), "")
	if err != nil {
		return err
	}
	syntax.Walk(file, r.node)
	r.settle()
	return nil
}

// settle is called when all parts are known: where a file is depends on them.
func (r *reader) settle() {
	moved := false
	for _, p := range r.parts {
		for _, f := range p.forms {
			name, _, _ := strings.Cut(f.text, " ")
			moved = moved || f.kind == command && (name == "cd" || name == "pushd" || name == "popd")
		}
	}
	for i := range r.parts {
		if p := &r.parts[i]; moved && p.kind == write && p.unclear == "" {
			p.unclear = whyFolder
		}
	}
}

// add adds a part with its forms.
func (r *reader) add(p part, forms ...form) {
	if r.full {
		return
	}
	for _, f := range forms {
		r.budget -= len(f.text) + 64
	}
	if len(r.parts) >= maxParts || r.budget < 0 {
		r.full = true
		p = part{kind: command, text: "…", unclear: whyTooLong}
		forms = []form{{kind: command, tool: shellTool, text: "…"}}
	}
	p.tool, p.forms = shellTool, append(p.forms, forms...)
	r.parts = append(r.parts, p)
}

// opaque adds a part that may run anything.
func (r *reader) opaque(text, why string) {
	r.add(part{kind: command, text: text, unclear: why}, form{kind: command, tool: shellTool, text: text + " …"})
}

// source is what is written at a node, on one line.
func (r *reader) source(n syntax.Node) string {
	from, to := int(n.Pos().Offset()), int(n.End().Offset())
	if from > to || to > len(r.line) {
		return "…"
	}
	return strings.Join(strings.Fields(r.line[from:min(to, from+2*maxShown)]), " ")
}

// node is called for every node of the syntax tree; commands in substitutions
// are among them.
func (r *reader) node(n syntax.Node) bool {
	switch n := n.(type) {
	case *syntax.CallExpr:
		r.call(n)
	case *syntax.Redirect:
		r.redirect(n)
	case *syntax.FuncDecl, *syntax.DeclClause, *syntax.CoprocClause:
		r.opaque(r.source(n), whyState)
	case *syntax.LetClause, *syntax.ArithmCmd, *syntax.CStyleLoop:
		r.opaque(r.source(n), whyComputed)
	case *syntax.ProcSubst:
		r.opaque(r.source(n), whyDialect)
	case *syntax.TestClause:
		r.test(n)
	case *syntax.WordIter:
		if why := assignment(n.Name.Value); why != "" {
			r.opaque(n.Name.Value+"=…", why)
		}
	case *syntax.ParamExp:
		if computes(n) {
			r.opaque(r.source(n), whyComputed)
		}
	case *syntax.ArithmExp:
		if !onlyNumbers(n.X) {
			r.opaque(r.source(n), whyComputed)
		}
	}
	return true
}

// computes reports whether an expansion does more than put a value in its place:
// ${x@P} runs what is in x, an index is arithmetic, which may run commands too.
func computes(p *syntax.ParamExp) bool {
	if p.Excl || p.Index != nil || p.Slice != nil || p.Names != 0 || p.Width || p.NestedParam != nil || p.Flags != nil {
		return true
	}
	if p.Exp == nil {
		return false
	}
	switch p.Exp.Op {
	case syntax.AlternateUnset, syntax.AlternateUnsetOrNull, syntax.DefaultUnset, syntax.DefaultUnsetOrNull,
		syntax.ErrorUnset, syntax.ErrorUnsetOrNull,
		syntax.RemSmallPrefix, syntax.RemLargePrefix, syntax.RemSmallSuffix, syntax.RemLargeSuffix:
		return false
	}
	return true
}

// onlyNumbers reports whether arithmetic has no variables: the value of a
// variable is evaluated once more, with the commands that are in it.
func onlyNumbers(x syntax.ArithmExpr) bool {
	if x == nil {
		return true
	}
	ok := true
	syntax.Walk(x, func(n syntax.Node) bool {
		switch n := n.(type) {
		case *syntax.Lit:
			_, err := strconv.ParseUint(n.Value, 0, 64)
			ok = ok && err == nil
		case *syntax.ParamExp, *syntax.CmdSubst, *syntax.SglQuoted, *syntax.DblQuoted:
			ok = false
		}
		return ok
	})
	return ok
}

// test adds [[ ... ]]. It changes nothing, but compares by arithmetic.
func (r *reader) test(n *syntax.TestClause) {
	text := r.source(n)
	p := part{kind: command, text: text}
	known := len(text)
	syntax.Walk(n, func(n syntax.Node) bool {
		switch n.(type) {
		case *syntax.ParamExp, *syntax.CmdSubst, *syntax.ArithmExp, *syntax.ProcSubst:
			p.unclear = whyArgument
			known = len("[[ ")
		}
		return true
	})
	r.add(p, form{kind: command, tool: shellTool, text: text, known: min(known, len(text))})
}

// call adds a simple command.
func (r *reader) call(n *syntax.CallExpr) {
	unclear, unsafe := "", false
	for _, a := range n.Assigns {
		name := ""
		if a.Name != nil {
			name = a.Name.Value
		}
		why := assignment(name)
		if a.Index != nil || a.Array != nil {
			why = whyComputed
		}
		if why != "" {
			r.opaque(name+"=…", why)
			unsafe = true
		} else if len(n.Args) > 0 && !localeVariable(name) {
			unclear = whyVariable
		}
	}
	words := make([]word, len(n.Args))
	for i, a := range n.Args {
		words[i] = readWord(a)
	}
	if r.posix && len(words) > 1 && n.Args[0].Lit() == "time" && !strings.HasPrefix(words[1].text, "-") {
		words = words[1:] // a keyword of bash, transparent there
	}
	if len(words) == 0 {
		return
	}
	r.command(words, unclear, unsafe)
}

// command adds the part of a command, and the files that it is there to write.
func (r *reader) command(words []word, unclear string, unsafe bool) {
	text, _ := join(words)
	p := part{kind: command, text: text, unclear: unclear}
	name := words[0]
	if !name.plain() || strings.TrimSpace(name.text) == "" || strings.ContainsAny(name.text, " \t\n") {
		p.unclear = whyProgram
		unsafe = true
	}
	insp := inspect(words, 0)
	p.risks = insp.risks
	if p.unclear == "" {
		p.unclear = insp.unclear
	}
	if p.unclear == "" && insp.opaque {
		p.unclear = whyText
	}
	if insp.inert && p.unclear == "" {
		p.kind = inert
	}
	forms := r.forms(words)
	if unsafe {
		forms = append(forms, form{kind: command, tool: shellTool, text: text + " …"})
	}
	r.add(p, forms...)
	for _, w := range insp.writes {
		r.write(w)
	}
}

// redirect adds the file that a command is redirected to or from.
func (r *reader) redirect(n *syntax.Redirect) {
	w := word{}
	if n.Word != nil {
		w = readWord(n.Word)
	}
	switch n.Op {
	case syntax.Hdoc, syntax.DashHdoc, syntax.WordHdoc:
		return // text; what is substituted in it is judged by itself
	case syntax.DplIn, syntax.DplOut:
		if w.plain() && (w.text == "-" || strings.Trim(strings.TrimSuffix(w.text, "-"), "0123456789") == "") {
			return
		}
		if n.Op == syntax.DplIn {
			r.opaque("<& "+w.text, whyRedirect)
			return
		}
		r.write(w)
	case syntax.RdrIn:
		if !w.plain() && !w.tilde || isSocket(w.text) {
			r.opaque("< "+w.text, whyRedirect)
			return
		}
		name := path.Clean(w.text)
		forms := pathForms(read, "read_file", name)
		r.add(part{kind: read, text: "< " + name, path: name}, append(forms, certain(command, shellTool, "< "+name))...)
	case syntax.RdrOut, syntax.AppOut, syntax.RdrClob, syntax.RdrInOut, syntax.RdrAll, syntax.AppAll:
		r.write(w)
	default:
		r.opaque(r.source(n), whyRedirect)
	}
}

// write adds a file that is written.
func (r *reader) write(w word) {
	if isSocket(w.text) || !w.fixed() || w.glob || w.braces || w.text == "" {
		r.opaque("> "+w.text, whyRedirect)
		// Whatever it turns out to be, what is certain of it counts.
		p := &r.parts[len(r.parts)-1]
		p.forms = append(p.forms,
			form{kind: write, tool: "write_file", text: w.text + "…", known: min(w.known, len(w.text))},
			form{kind: write, tool: "edit_file", text: w.text + "…", known: min(w.known, len(w.text))})
		return
	}
	if isStream(w.text) {
		return
	}
	p, forms := writePart(w)
	r.add(p, forms...)
}

func writePart(w word) (part, []form) {
	name := path.Clean(w.text)
	p := part{kind: write, text: "> " + name, path: name}
	if w.tilde {
		p.unclear = whyFolder
	}
	forms := pathForms(write, "write_file", name)
	forms = append(forms, pathForms(write, "edit_file", name)...)
	return p, append(forms, certain(command, shellTool, p.text))
}

// isStream reports whether a name stands for what a command writes to anyway,
// or for nothing.
func isStream(name string) bool {
	switch name {
	case "/dev/null", "/dev/stdout", "/dev/stderr":
		return true
	}
	fd, ok := strings.CutPrefix(name, "/dev/fd/")
	return ok && fd != "" && strings.Trim(fd, "0123456789") == ""
}

// isSocket reports whether bash connects to a name instead of opening it.
func isSocket(name string) bool {
	name = path.Clean(name)
	return strings.HasPrefix(name, "/dev/tcp/") || strings.HasPrefix(name, "/dev/udp/")
}

// forms returns everything that running words may be: the command itself, by
// its bare name, and the commands it is there to run.
func (r *reader) forms(words []word) []form {
	text, known := join(words)
	if len(words) > 0 && (words[0].glob || words[0].tilde) {
		known = 0 // any program
	}
	out := []form{{kind: command, tool: shellTool, text: text, known: known}}
	r.budget -= len(text) + 64
	if r.depth >= maxDepth || r.budget < 0 || len(words) == 0 {
		return append(out, form{kind: command, tool: shellTool, text: whyTooNested})
	}
	for _, w := range words {
		if w.braces {
			spread := strings.NewReplacer("{", " ", ",", " ", "}", " ").Replace(text)
			out = append(out, form{kind: command, tool: shellTool, text: strings.Join(strings.Fields(spread), " "), known: known})
			break
		}
	}
	if base := path.Base(words[0].text); base != words[0].text && words[0].fixed() {
		bare := append([]word{plainWord(base)}, words[1:]...)
		text, known := join(bare)
		out = append(out, form{kind: command, tool: shellTool, text: text, known: known})
	}
	r.depth++
	defer func() { r.depth-- }()
	insp := inspect(words, 0)
	for _, inner := range insp.inner {
		out = append(out, r.forms(inner)...)
	}
	for _, script := range insp.scripts {
		out = append(out, r.script(script)...)
	}
	if insp.opaque {
		out = append(out, form{kind: command, tool: shellTool, text: text + " …"})
	}
	if r.depth > 1 {
		for _, w := range insp.writes {
			if w.fixed() {
				_, fs := writePart(w)
				out = append(out, fs...)
			}
		}
	}
	return out
}

// script returns the forms of everything in text that a command runs.
func (r *reader) script(w word) []form {
	if !w.plain() {
		return []form{{kind: command, tool: shellTool, text: "…"}}
	}
	inner := &reader{line: w.text, budget: r.budget, depth: r.depth}
	var out []form
	if err := inner.read(w.text, syntax.LangBash); err != nil {
		out = append(inner.scraps(w.text), form{kind: command, tool: shellTool, text: "…"})
	}
	for _, p := range inner.parts {
		out = append(out, p.forms...)
	}
	r.budget = inner.budget
	return out
}

// scraps cuts text that is no shell command wherever a command could begin: a
// shell runs what comes before the fault.
func (r *reader) scraps(line string) []form {
	var out []form
	unquoted := strings.NewReplacer(`"`, "", "'", "", `\`, "").Replace(line)
	for i, text := range []string{unquoted, line} {
		chunks := strings.FieldsFunc(text, func(c rune) bool {
			return strings.ContainsRune(";|&\n(){}`<>$", c) || i == 1 && (c == '"' || c == '\'')
		})
		for _, chunk := range chunks {
			words := strings.Fields(chunk)
			for len(words) > 0 && isKeyword(words[0]) {
				words = words[1:]
			}
			if len(words) == 0 {
				continue
			}
			if r.budget < 0 {
				return out
			}
			out = append(out, r.forms(plainWords(words))...)
		}
	}
	return append(out, r.scrapFiles(unquoted)...)
}

// scrapFiles returns the files that such text may be redirected to or from.
func (r *reader) scrapFiles(line string) []form {
	var out []form
	for {
		i := strings.IndexAny(line, "<>")
		if i < 0 || r.budget < 0 {
			return out
		}
		writes := line[i] == '>'
		line = strings.TrimLeft(line[i+1:], " \t>&|")
		end := strings.IndexAny(line+" ", " \t\n;|&<>()")
		name := path.Clean(line[:end])
		r.budget -= 2 * (len(name) + 64)
		if writes {
			out = append(out, pathForms(write, "write_file", name)...)
			out = append(out, pathForms(write, "edit_file", name)...)
		} else {
			out = append(out, pathForms(read, "read_file", name)...)
		}
	}
}

func isKeyword(w string) bool {
	switch w {
	case "if", "then", "else", "elif", "fi", "while", "until", "do", "done", "case", "esac", "in", "for", "select",
		"function", "time", "coproc", "!", "{", "}":
		return true
	}
	return strings.Contains(w, "=") && syntax.ValidName(w[:strings.IndexByte(w, '=')])
}
