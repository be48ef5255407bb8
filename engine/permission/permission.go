// Package permission decides by rules whether a tool call is allowed, is denied,
// or must be allowed by a person.
//
// A shell command is read with a shell's grammar and judged part by part: every
// command in it, also inside of substitutions, and every file it is redirected
// to. Rules that ask or deny match as widely as possible, rules that allow as
// narrowly as possible, and what cannot be read before it runs is never allowed
// by a rule for particular commands.
//
// This keeps people from being asked about harmless things, and harmful ones
// from happening by accident. It is no boundary: whoever may run one program may
// be able to make it run another. The boundary is package sandbox.
package permission

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"trill/engine/tool"
)

// Config is the rules, and what happens where there is none.
type Config struct {
	// Mode is what happens to a call that changes something when no rule
	// decides: allow, ask or deny; empty is ask. Reading is allowed. A command
	// that cannot be read before it runs is asked about in mode allow as well.
	Mode  string
	Rules []Rule
}

// Validate reports every fault, each starting with its key.
func (c Config) Validate() error {
	var errs []error
	switch tool.Decision(c.Mode) {
	case "", tool.Allow, tool.Ask, tool.Deny:
	default:
		errs = append(errs, fmt.Errorf("mode: %q is none of allow, ask, deny", c.Mode))
	}
	for i, r := range c.Rules {
		for _, err := range r.faults() {
			errs = append(errs, fmt.Errorf("rule %d: %w", i+1, err))
		}
	}
	return errors.Join(errs...)
}

// Policy is a [tool.Gate] that follows rules. It never changes.
type Policy struct {
	rules []Rule
	mode  tool.Decision
}

var _ tool.Gate = (*Policy)(nil)

// New returns the policy of a configuration.
func New(conf Config) (*Policy, error) {
	if err := conf.Validate(); err != nil {
		return nil, err
	}
	p := &Policy{rules: append([]Rule(nil), conf.Rules...), mode: tool.Decision(conf.Mode)}
	if p.mode == "" {
		p.mode = tool.Ask
	}
	return p, nil
}

// Judge implements [tool.Gate].
func (p *Policy) Judge(_ context.Context, call tool.Call) tool.Verdict {
	parts := p.Explain(call)
	worst := parts[0]
	same := true
	for _, part := range parts[1:] {
		same = same && part.Reason == parts[0].Reason
		if strictness(part.Decision) > strictness(worst.Decision) {
			worst = part
		}
	}
	reason := worst.Reason
	switch {
	case same && len(parts) == 1 || same && worst.Decision == tool.Allow:
	case worst.Decision == tool.Allow:
		reason = fmt.Sprintf("each of its %d parts is allowed", len(parts))
	default:
		reason = quote(worst.Text, 60) + ": " + reason
	}
	return tool.Verdict{Decision: worst.Decision, Reason: reason}
}

// Part is a piece of a call that is judged for itself.
type Part struct {
	Text     string // a command, "> path", or what the call is for; readable and bounded
	Decision tool.Decision
	Reason   string // which rule decided, or why none did
}

// Explain returns the parts of a call, at least one, and what decided about
// each. The strictest decision is that of the call.
func (p *Policy) Explain(call tool.Call) []Part {
	parts, err := partsOf(call)
	if err != nil {
		return []Part{{Text: printable(call.Spec.Name, 60), Decision: tool.Deny, Reason: err.Error()}}
	}
	var out []Part
	for _, part := range parts {
		d, reason := p.decide(call, part)
		out = append(out, Part{Text: printable(part.text, maxShown), Decision: d, Reason: reason})
	}
	return out
}

func (p *Policy) decide(call tool.Call, part part) (tool.Decision, string) {
	if call.Role == "guest" && call.Spec.Operation() != tool.Get {
		return tool.Deny, "guests may only read"
	}
	for i, r := range p.rules {
		if r.Decision == tool.Deny && r.restricts(call, part) {
			return tool.Deny, r.name(i) + " denies"
		}
	}
	for i, r := range p.rules {
		switch r.Decision {
		case tool.Ask:
			if r.restricts(call, part) {
				return tool.Ask, r.name(i) + " asks"
			}
		case tool.Allow:
			if !r.permits(call, part) {
				continue
			}
			if k := p.shadow(call, part, i); k >= 0 {
				return tool.Ask, p.rules[k].name(k) + " may be meant, which shows only when it runs"
			}
			return tool.Allow, r.name(i) + " allows"
		}
	}
	return p.byDefault(call, part)
}

// byDefault decides about a part that no rule is for.
func (p *Policy) byDefault(call tool.Call, part part) (tool.Decision, string) {
	switch part.kind {
	case inert:
		return tool.Allow, "it does nothing by itself"
	case read:
		return tool.Allow, "it only reads"
	}
	if call.Spec.Operation() == tool.Get {
		return tool.Allow, "it only reads"
	}
	why := "it changes something and no rule allows it"
	if part.unclear != "" {
		why = part.unclear
	}
	if p.mode != tool.Allow {
		return p.mode, why
	}
	if part.opaque() {
		return tool.Ask, why
	}
	if k := p.shadow(call, part, len(p.rules)); k >= 0 {
		return tool.Ask, p.rules[k].name(k) + " may be meant, which shows only when it runs"
	}
	return tool.Allow, "no rule is against it"
}

// shadow returns the first rule that would have decided before rule n, had the
// part shown what it does; -1 when there is none.
func (p *Policy) shadow(call tool.Call, part part, n int) int {
	for i, r := range p.rules {
		if (r.Decision == tool.Deny || r.Decision == tool.Ask && i < n) && r.mayRestrict(call, part) {
			return i
		}
	}
	return -1
}

func strictness(d tool.Decision) int {
	switch d {
	case tool.Allow:
		return 0
	case tool.Ask:
		return 1
	}
	return 2
}

// maxShown is how much of a part is shown, in characters.
const maxShown = 200

// quote shows text that somebody else wrote as code in a sentence.
func quote(s string, limit int) string {
	return "`" + strings.ReplaceAll(printable(s, limit), "`", "'") + "`"
}

// printable returns s on one line, without characters that could make it look
// like something else, and with at most limit characters.
func printable(s string, limit int) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r) || unicode.IsControl(r):
			space = b.Len() > 0
			continue
		case unicode.Is(unicode.Cf, r) || unicode.Is(unicode.Co, r) || r == unicode.ReplacementChar:
			r = '?'
		}
		if n >= limit {
			return b.String() + "…"
		}
		if space {
			b.WriteByte(' ')
			space = false
			n++
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}
