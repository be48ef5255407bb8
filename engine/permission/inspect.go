package permission

import (
	"path"
	"strings"
)

// risk is something in a command that a rule with wildcards must name to allow
// it.
type risk struct {
	// need is what a word of the rule must begin with, or be; empty: no rule
	// with wildcards can name it.
	need string
	// whole asks for a word of the rule that is need and nothing else.
	whole bool
}

// named reports whether a word of a rule, which begins with lit and has a
// wildcard after it if glob is set, names the risk.
func (k risk) named(lit string, glob bool) bool {
	if k.whole {
		return lit == k.need && !glob
	}
	return strings.HasPrefix(lit, k.need)
}

// inspection is what is known about a command beyond its words.
type inspection struct {
	risks   []risk
	unclear string
	inert   bool
	opaque  bool // it runs something that is not in its words
	writes  []word
	inner   [][]word // commands it is there to run
	scripts []word   // shell text it is there to run
}

// inspect looks a command up in the tables of programs.go. depth is how many
// commands it is the command of.
func inspect(words []word, depth int) inspection {
	var out inspection
	if len(words) == 0 {
		return out
	}
	if depth > maxDepth {
		out.unclear, out.opaque = whyTooNested, true
		return out
	}
	name, args := words[0].text, words[1:]
	if words[0].plain() && isNothing(name, args) {
		out.inert = true
		return out
	}
	if harmless[name] || name == "printf" && len(args) > 0 && args[0].plain() && !strings.HasPrefix(args[0].text, "-") {
		return out
	}
	name = path.Base(name)
	_, known := programs[name]
	for _, w := range args {
		if w.anything() || known && !w.fixed() {
			out.unclear = whyArgument
		}
	}
	switch {
	case stateful[name]:
		out.unclear = whyState
		out.opaque = true
		switch {
		case name == "eval":
			out.unclear = whyText
			out.opaque = false
			out.scripts = append(out.scripts, joined(args))
		case name == "trap" && len(args) > 0:
			out.scripts = append(out.scripts, args[0])
		case name == "alias":
			for _, w := range args {
				if _, text, ok := strings.Cut(w.text, "="); ok && w.plain() {
					out.scripts = append(out.scripts, plainWord(text))
				}
			}
		}
		return out
	case name == "command" && len(args) > 0 && (args[0].text == "-v" || args[0].text == "-V"):
		return out // tells where a program is
	}
	if w, ok := wrappers[name]; ok {
		out.wrapped(name, w, args, depth)
		return out
	}
	out.options(name, args, depth)
	return out
}

// isNothing reports whether a command only steers the line it is in.
func isNothing(name string, args []word) bool {
	switch name {
	case ":", "true", "false", "exit", "return", "break", "continue":
		for _, w := range args {
			if !w.fixed() {
				return false
			}
		}
		return true
	case "set":
		for i, w := range args {
			ok := w.plain() && len(w.text) > 1 && w.text[0] == '-' && strings.Trim(w.text[1:], "eux") == ""
			ok = ok || w.plain() && w.text == "-o" || w.plain() && strings.HasPrefix(w.text, "-") && strings.HasSuffix(w.text, "o") && strings.Trim(w.text[1:], "euxo") == ""
			ok = ok || w.plain() && w.text == "pipefail" && i > 0 && strings.HasSuffix(args[i-1].text, "o")
			if !ok {
				return false
			}
		}
		return len(args) > 0
	}
	return false
}

// joined makes one text of words, as eval does.
func joined(words []word) word {
	text, known := join(words)
	w := word{text: text, known: known}
	for _, a := range words {
		w.split = w.split || a.split
		w.glob, w.braces, w.tilde = w.glob || a.glob, w.braces || a.braces, w.tilde || a.tilde
	}
	return w
}

// wrapped finds what a program that runs other programs is there to run.
func (out *inspection) wrapped(name string, w wrapper, args []word, depth int) {
	for _, a := range args {
		if !a.fixed() {
			out.unclear = whyArgument
		}
	}
	scripts := strings.Fields(w.scripts)
	skip, guess := w.skip, false
	i := 0
	for ; i < len(args); i++ {
		text := args[i].text
		switch {
		case text == "--":
			i += 1 + max(skip, 0)
		case text == "-" && has(strings.Fields(w.flags), text):
			continue
		case len(text) > 1 && (text[0] == '-' || text[0] == '+' && w.shell):
			if value, rest := takesScript(text, scripts, w.shell); value {
				switch {
				case rest != "":
					out.scripts = append(out.scripts, plainWord(rest))
				case w.shell:
					// The text is the first word that is no option.
					skip = -1
				case i+1 < len(args):
					i++
					out.scripts = append(out.scripts, args[i])
				}
				out.unclear = whyText
				continue
			}
			switch w.option(text) {
			case optionValue:
				i++
			case optionUnknown:
				guess = true // its value may come next
			}
			continue
		case w.assigns && strings.Contains(text, "="):
			out.unclear = whyVariable
			continue
		case skip > 0:
			skip--
			continue
		}
		break
	}
	rest := args[min(i, len(args)):]
	switch {
	case w.shell:
		out.unclear = whyText
		if skip < 0 && len(rest) > 0 {
			out.scripts = append(out.scripts, rest[0])
		} else {
			out.opaque = true // a file, or what it is given
		}
	case len(rest) == 0:
		out.opaque = len(out.scripts) == 0 && w.bare == ""
	case w.text:
		out.unclear = whyText
		out.scripts = append(out.scripts, joined(rest))
	default:
		out.inner = append(out.inner, rest)
		if guess && len(rest) > 1 {
			out.inner = append(out.inner, rest[1:])
		}
		out.risks = append(out.risks, risk{need: rest[0].text, whole: true})
		if w.appends && !harmless[rest[0].text] {
			// What is appended may be options: the arguments are not all here.
			out.unclear = whyArgument
		}
		deep := inspect(rest, depth+1)
		out.risks = append(out.risks, deep.risks...)
		if deep.unclear != "" {
			out.unclear = deep.unclear
		}
	}
	if name == "exec" {
		out.unclear = whyState
	}
}

// What an option of a wrapper means for the word after it.
const (
	optionFlag = iota
	optionValue
	optionUnknown
)

func (w wrapper) option(text string) int {
	flags, values := strings.Fields(w.flags), strings.Fields(w.values)
	switch {
	case has(values, text):
		return optionValue
	case has(flags, text) || strings.Contains(text, "="):
		return optionFlag
	case strings.HasPrefix(text, "--"):
		return optionUnknown
	}
	for i := 1; i < len(text); i++ {
		letter := "-" + text[i:i+1]
		switch {
		case has(values, letter) && i+1 == len(text):
			return optionValue
		case has(values, letter):
			return optionFlag // the rest is its value
		case !has(flags, letter):
			return optionUnknown
		}
	}
	return optionFlag
}

// takesScript reports whether an option is one whose value is shell text, and
// returns the value if it is in the same word. In a cluster it never is.
func takesScript(text string, scripts []string, cluster bool) (yes bool, value string) {
	for _, s := range scripts {
		switch {
		case strings.HasPrefix(s, "--"):
			if text == s {
				return true, ""
			}
			if v, ok := strings.CutPrefix(text, s+"="); ok {
				return true, v
			}
		case !strings.HasPrefix(text, "--"):
			if i := strings.IndexByte(text, s[1]); i > 0 {
				if cluster {
					return true, "" // the letters after it are options too
				}
				return true, text[i+1:]
			}
		}
	}
	return false, ""
}

func has(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}

// options finds the options of a program that write, delete, or run something.
func (out *inspection) options(name string, args []word, depth int) {
	prog, known := programs[name]
	if name != "git" {
		out.scan(args, anyProgram, prog)
	}
	if known {
		for _, w := range args {
			if w.text == "--" {
				break
			}
			if w.sprouts() {
				out.risks = append(out.risks, risk{})
			}
		}
	}
	switch name {
	case "git":
		out.git(args)
	case "find":
		out.find(args, depth)
	case "sed", "gsed":
		out.sed(args)
	case "awk", "gawk", "mawk", "nawk":
		out.awk(args)
	case "tar":
		if len(args) > 0 && strings.ContainsAny(args[0].text, "IFP") {
			out.risks = append(out.risks, risk{}) // options without a dash
		}
	case "tee":
		for _, w := range args {
			if !strings.HasPrefix(w.text, "-") {
				out.writes = append(out.writes, w)
			}
		}
	case "uniq", "xxd":
		files := 0
		for _, w := range args {
			if !strings.HasPrefix(w.text, "-") {
				if files++; files > 1 {
					out.risks = append(out.risks, risk{})
				}
			}
		}
	}
	if prog.interpreter {
		file := false
		for _, w := range args {
			file = file || !strings.HasPrefix(w.text, "-")
		}
		if !file && !has([]string{"-V", "--version", "--help", "-h", "version"}, joined(args).text) {
			out.risks = append(out.risks, risk{}) // it runs what it is given
		}
	}
}

// scan finds options among arguments, each word once.
func (out *inspection) scan(args []word, tables ...program) {
	for _, w := range args {
		if k, ok := riskIn(w.text, tables); ok {
			out.risks = append(out.risks, k)
		}
	}
}

func riskIn(text string, tables []program) (risk, bool) {
	for _, p := range tables {
		for _, opt := range strings.Fields(p.options) {
			if need := uses(text, opt, p.exact); need != "" {
				return risk{need: need, whole: !strings.HasPrefix(opt, "-")}, true
			}
		}
	}
	return risk{}, false
}

// uses reports whether a word is an option, and returns as much of the word as a
// rule has to say to name it.
func uses(text, opt string, exact bool) string {
	name, _, _ := strings.Cut(text, "=")
	switch {
	case opt == "-":
		if text == opt {
			return text
		}
	case strings.HasSuffix(opt, "*"):
		if strings.HasPrefix(text, strings.TrimSuffix(opt, "*")) {
			return text
		}
	case !strings.HasPrefix(opt, "-"):
		if text == opt {
			return text
		}
	case exact:
		if name == opt || name == "-"+opt {
			return name
		}
	case strings.HasPrefix(opt, "--"):
		// Programs take any beginning of a long option that is unique.
		if strings.HasPrefix(opt, name) && len(name) > 2 {
			return name
		}
	case len(text) > 1 && text[0] == '-' && text[1] != '-':
		if i := strings.IndexByte(text, opt[1]); i > 0 {
			return text[:i+1]
		}
	}
	return ""
}

// git looks at the options before git's own command, and at what that command
// has of its own.
func (out *inspection) git(args []word) {
	i := 0
	for ; i < len(args); i++ {
		text := args[i].text
		if !strings.HasPrefix(text, "-") {
			break
		}
		name, _, inline := strings.Cut(text, "=")
		switch name {
		case "-c", "-C", "--git-dir", "--work-tree", "--namespace", "--exec-path", "--config-env", "--super-prefix", "--attr-source":
			out.risks = append(out.risks, risk{need: name})
			if !inline && name != "--exec-path" {
				i++
			}
		case "--no-pager", "--version", "--help", "--no-optional-locks", "--no-replace-objects", "--literal-pathspecs", "--bare":
		default:
			out.risks = append(out.risks, risk{need: text})
		}
	}
	if i >= len(args) {
		return
	}
	if i > 0 {
		out.inner = append(out.inner, append([]word{plainWord("git")}, args[i:]...))
	}
	sub, rest := args[i].text, args[i+1:]
	out.scan(rest, anyProgram, programs["git"], gitCommands[sub])
	for _, w := range rest {
		if strings.Contains(w.text, "::") {
			out.risks = append(out.risks, risk{}) // ext:: and the like run a program
		}
	}
	if sub == "config" && !gitConfigReads(rest) {
		out.risks = append(out.risks, risk{})
	}
	if sub == "submodule" || sub == "bisect" {
		for j, w := range rest {
			if w.text == "foreach" || w.text == "run" {
				out.scripts = append(out.scripts, joined(rest[j+1:]))
			}
		}
	}
}

func gitConfigReads(args []word) bool {
	for _, w := range args {
		switch w.text {
		case "get", "list", "-l", "--list", "--get", "--get-all", "--get-regexp", "--get-urlmatch":
			return true
		case "--global", "--local", "--system", "--show-origin", "--show-scope", "-z", "--null", "--name-only":
			continue
		}
		return false
	}
	return false
}

// find looks for the commands that find runs.
func (out *inspection) find(args []word, depth int) {
	for i := 0; i < len(args); i++ {
		switch args[i].text {
		case "-exec", "-execdir", "-ok", "-okdir":
		default:
			continue
		}
		from := i + 1
		to := from
		for to < len(args) && !has([]string{";", "+", "-exec", "-execdir", "-ok", "-okdir"}, args[to].text) {
			to++
		}
		if from < to {
			inner := args[from:to]
			out.inner = append(out.inner, inner)
			out.risks = append(out.risks, risk{need: inner[0].text, whole: true})
			deep := inspect(inner, depth+1)
			out.risks = append(out.risks, deep.risks...)
			if deep.unclear != "" {
				out.unclear = deep.unclear
			}
		}
		i = to - 1
	}
}

// sed looks at the scripts: only those that print, delete and replace are known
// not to write or run anything.
func (out *inspection) sed(args []word) {
	var scripts []word
	first := true
	for i := 0; i < len(args); i++ {
		text := args[i].text
		switch {
		case strings.HasPrefix(text, "--"):
			if v, ok := strings.CutPrefix(text, "--expression="); ok {
				scripts, first = append(scripts, plainWord(v)), false
			}
		case strings.HasPrefix(text, "-") && len(text) > 1:
			j := strings.IndexByte(text, 'e')
			if j < 0 {
				continue
			}
			first = false
			if j+1 < len(text) {
				scripts = append(scripts, plainWord(text[j+1:]))
			} else if i+1 < len(args) {
				i++
				scripts = append(scripts, args[i])
			}
		case first:
			scripts, first = append(scripts, args[i]), false
		}
	}
	for _, s := range scripts {
		if !quietSed(s.text) {
			out.risks = append(out.risks, risk{})
		}
	}
}

// quietSed reports whether a script is one command that stays in the output: an
// optional address, and p, d, q, = or a replacement without e and w.
func quietSed(script string) bool {
	s := strings.TrimLeft(strings.TrimSpace(script), "0123456789,$+~")
	if rest, ok := strings.CutPrefix(s, "/"); ok {
		end := strings.IndexByte(rest, '/')
		if end < 0 || strings.ContainsAny(rest[:end], "\\[\n") {
			return false
		}
		s = rest[end+1:]
	}
	s = strings.TrimPrefix(s, "!")
	switch s {
	case "p", "d", "q", "=":
		return true
	}
	if len(s) < 4 || s[0] != 's' || strings.ContainsRune(s, '\n') {
		return false
	}
	delim, seen, i := s[1], 0, 1
	if delim == '\\' || delim >= 0x80 {
		return false
	}
	for ; i < len(s) && seen < 3; i++ {
		switch s[i] {
		case '\\':
			i++
		case '[':
			return false // a set may hold the delimiter
		case delim:
			seen++
		}
	}
	return seen == 3 && i <= len(s) && strings.Trim(s[i:], "gpiIM0123456789") == ""
}

// awk looks for what makes a script write or run something.
func (out *inspection) awk(args []word) {
	for _, w := range args {
		if strings.HasPrefix(w.text, "-F") {
			continue
		}
		if strings.ContainsAny(w.text, "|>@\n") || strings.Contains(w.text, "system") || strings.Contains(w.text, "getline") {
			out.risks = append(out.risks, risk{})
		}
	}
}
