package permission

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"trill/engine/internal/fnmatch"
	"trill/engine/tool"
)

// Rule decides about the calls that match all it says; an empty field matches
// everything. Its texts are patterns in which * stands for anything, also with
// slashes, ? for one character and [...] for one of a set.
//
// A deny counts wherever it stands; of the others the first that matches.
type Rule struct {
	Tool string
	// When is what the tool is used for. For files it is the path as
	// path.Clean writes it; for shell each command of the line, without quotes
	// and with single spaces, and "> path" for each file it writes to; for any
	// other tool its arguments as compact JSON.
	//
	// To ask or deny, "rm" is also for `rm x`, /bin/rm and `sudo rm`, and a path
	// for what is below it. To allow, it is only for what it says: `git log*`
	// is not for git logger, and options that write or run something must be
	// named.
	When      string
	Person    string // channel:platform-id
	Role      string
	Channel   string
	Operation string // get or set
	Decision  tool.Decision
}

// maxPattern bounds how long a rule's text may be, in bytes, and with it what
// matching can cost.
const maxPattern = 1000

func (r Rule) faults() []error {
	var errs []error
	switch r.Decision {
	case tool.Allow, tool.Ask, tool.Deny:
	case "":
		errs = append(errs, errors.New("decision: is missing; use allow, ask or deny"))
	default:
		errs = append(errs, fmt.Errorf("decision: %q is none of allow, ask, deny", r.Decision))
	}
	switch r.Operation {
	case "", "*", string(tool.Get), string(tool.Set):
	default:
		errs = append(errs, fmt.Errorf("operation: %q is none of get, set", r.Operation))
	}
	for _, f := range []struct{ key, text string }{
		{"tool", r.Tool}, {"when", r.When}, {"person", r.Person}, {"role", r.Role}, {"channel", r.Channel},
	} {
		if len(f.text) > maxPattern {
			errs = append(errs, fmt.Errorf("%s: is longer than %d bytes", f.key, maxPattern))
		}
	}
	return errs
}

// name is how the i-th rule is called in a reason.
func (r Rule) name(i int) string {
	what := printable(r.Tool, 30)
	if r.When != "" {
		what = strings.TrimSpace(what + " " + quote(r.When, 60))
	}
	if what == "" {
		return fmt.Sprintf("rule %d", i+1)
	}
	return fmt.Sprintf("rule %d (%s)", i+1, what)
}

// restricts reports whether a rule that asks or denies is for a part. It is
// when it matches anything the part may turn out to be.
func (r Rule) restricts(call tool.Call, part part) bool {
	if !r.isFor(call, part) {
		return false
	}
	if r.forAll() {
		// What a command reads or does not do is no question of its own.
		return r.Decision == tool.Deny || part.kind != inert && part.kind != read || !r.forTool(shellTool)
	}
	for _, f := range part.forms {
		if !r.forTool(f.tool) {
			continue
		}
		if fnmatch.Match(r.When, f.text) || fnmatch.Match(strings.TrimSuffix(r.When, "/")+f.kind.below(), f.text) {
			return true
		}
	}
	return false
}

// mayRestrict reports whether restricts could be true once everything is known
// that is computed when the part runs.
func (r Rule) mayRestrict(call tool.Call, part part) bool {
	if r.forAll() || !r.isFor(call, part) {
		return false
	}
	lit := literal(r.When)
	for _, f := range part.forms {
		known := f.text[:f.known]
		if f.known < len(f.text) && r.forTool(f.tool) && (strings.HasPrefix(lit, known) || strings.HasPrefix(known, lit)) {
			return true
		}
	}
	return false
}

// permits reports whether a rule that allows is for a part.
func (r Rule) permits(call tool.Call, part part) bool {
	if !r.isFor(call, part) {
		return false
	}
	if part.kind == write {
		return r.permitsWrite(part)
	}
	if r.forAll() {
		return part.tool != shellTool || r.forTool(shellTool)
	}
	if part.unclear != "" {
		return false
	}
	switch part.kind {
	case command, inert:
		return matchNarrow(r.When, part.text) && r.namesAll(part.risks)
	case file:
		return r.matchPath(part.text)
	case read:
		return r.forTool("read_file") && r.matchPath(part.path)
	}
	return fnmatch.Match(r.When, part.text)
}

// permitsWrite is permits for what a command is redirected to: a rule for all
// commands covers it, and one that names it, as "> path" or as a path that
// write_file may write.
func (r Rule) permitsWrite(part part) bool {
	if r.forAll() && r.forTool(shellTool) {
		return true
	}
	if part.unclear != "" {
		return false
	}
	if r.forTool(shellTool) && strings.HasPrefix(r.When, ">") && fnmatch.Match(r.When, "> "+part.path) {
		return true
	}
	inside := !path.IsAbs(part.path) && !isOutside(part.path) && !strings.HasPrefix(part.path, "~")
	return inside && r.forTool("write_file") && (r.forAll() || r.matchPath(part.path))
}

// matchPath keeps a rule for paths of the workspace from matching others.
func (r Rule) matchPath(p string) bool {
	if path.IsAbs(p) != path.IsAbs(r.When) || isOutside(p) != isOutside(r.When) {
		return false
	}
	return fnmatch.Match(r.When, p)
}

func isOutside(p string) bool { return p == ".." || strings.HasPrefix(p, "../") }

// isFor compares everything but When.
func (r Rule) isFor(call tool.Call, part part) bool {
	if !matchField(r.Person, call.Person) || !matchField(r.Role, call.Role) || !matchField(r.Channel, call.Channel) {
		return false
	}
	op := call.Spec.Operation()
	for _, f := range part.forms {
		op := op
		if f.kind == read {
			op = tool.Get
		}
		if r.forTool(f.tool) && matchField(r.Operation, string(op)) {
			return true
		}
	}
	return false
}

// forAll reports whether the rule is for all a tool can be used for.
func (r Rule) forAll() bool { return strings.Trim(r.When, "*") == "" }

func (r Rule) forTool(name string) bool { return matchField(r.Tool, name) }

func matchField(pattern, s string) bool { return pattern == "" || fnmatch.Match(pattern, s) }

// matchNarrow matches a command with a rule that allows it. A program or its
// first word with a * after it means that word, not words that begin so.
func matchNarrow(when, text string) bool {
	if !fnmatch.Match(when, text) {
		return false
	}
	head, star := strings.CutSuffix(when, "*")
	if !star || isGlob(head) || head == "" || strings.Count(head, " ") > 1 || !isWordByte(head[len(head)-1]) {
		return true
	}
	last := head[strings.LastIndexByte(head, ' ')+1:]
	if strings.ContainsAny(last, "./:=@,~") {
		return true // a path, or the beginning of a value
	}
	return text == head || strings.HasPrefix(text, head+" ")
}

func isWordByte(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// maxRisks is how many risks of one command are compared with a rule.
const maxRisks = 32

// namesAll reports whether the rule names every one of the risks, each as often
// as it occurs. A rule without wildcards names all that it matches.
func (r Rule) namesAll(risks []risk) bool {
	if !isGlob(r.When) {
		return true
	}
	if len(risks) > maxRisks {
		return false
	}
	words := strings.Fields(r.When)
	for _, k := range risks {
		if k.need == "" {
			return false
		}
		named, wanted := 0, 0
		for _, w := range words {
			if k.named(literal(w), isGlob(w)) {
				named++
			}
		}
		for _, other := range risks {
			if other == k {
				wanted++
			}
		}
		if named < wanted {
			return false
		}
	}
	return true
}

// literal returns the beginning of a pattern that stands for itself.
func literal(pattern string) string {
	if i := strings.IndexAny(pattern, "*?["); i >= 0 {
		return pattern[:i]
	}
	return pattern
}

// isGlob reports whether a pattern has anything that stands for something else.
func isGlob(pattern string) bool { return strings.ContainsAny(pattern, "*?[") }
