// Package fnmatch compares a text with a shell pattern, as permission rules and
// file filters are written.
//
// It is not path.Match: a * also stands for a slash, so that one pattern covers
// a whole command line or everything below a folder, and a pattern is never
// wrong: what is no complete [class] stands for itself.
package fnmatch

import "slices"

// Match reports whether the whole of s matches pattern. In a pattern * stands for
// any run of characters, also none, ? for one, [a-z] for one of these, [!a-z] for
// one that is none of these, and \ takes a special meaning away. The time is
// bounded by the product of the lengths.
func Match(pattern, s string) bool {
	return match(parse(pattern), []rune(s))
}

// Literal reports whether a pattern can match one text only.
func Literal(pattern string) bool {
	return !slices.ContainsFunc(parse(pattern), func(t token) bool { return t.kind != one })
}

// Prefix returns what every text that matches begins with.
func Prefix(pattern string) string {
	var out []rune
	for _, t := range parse(pattern) {
		if t.kind != one {
			break
		}
		out = append(out, t.r)
	}
	return string(out)
}

type kind int

const (
	one   kind = iota // the character r
	any1              // ?
	star              // *
	class             // [...]
)

type token struct {
	kind   kind
	r      rune
	not    bool
	ranges []rune // pairs of first and last
}

func (t token) fits(r rune) bool {
	switch t.kind {
	case one:
		return r == t.r
	case any1:
		return true
	}
	for i := 0; i < len(t.ranges); i += 2 {
		if t.ranges[i] <= r && r <= t.ranges[i+1] {
			return !t.not
		}
	}
	return t.not
}

func parse(pattern string) []token {
	p := []rune(pattern)
	var out []token
	for i := 0; i < len(p); i++ {
		switch r := p[i]; {
		case r == '*':
			if len(out) == 0 || out[len(out)-1].kind != star {
				out = append(out, token{kind: star})
			}
		case r == '?':
			out = append(out, token{kind: any1})
		case r == '\\' && i+1 < len(p):
			i++
			out = append(out, token{r: p[i]})
		case r == '[':
			t, n := parseClass(p[i+1:])
			if n == 0 {
				t = token{r: '['}
			}
			out = append(out, t)
			i += n
		default:
			out = append(out, token{r: r})
		}
	}
	return out
}

// parseClass reads what follows a [ and returns how many characters it took, 0
// when there is no ] to end it.
func parseClass(p []rune) (token, int) {
	t := token{kind: class}
	i := 0
	if i < len(p) && (p[i] == '!' || p[i] == '^') {
		t.not = true
		i++
	}
	for first := true; ; first = false {
		switch {
		case i >= len(p):
			return t, 0
		case p[i] == ']' && !first: // as the first it stands for itself
			return t, i + 1
		}
		low, n := classRune(p[i:])
		if n == 0 {
			return t, 0
		}
		i += n
		high := low
		if i+1 < len(p) && p[i] == '-' && p[i+1] != ']' {
			if high, n = classRune(p[i+1:]); n == 0 {
				return t, 0
			}
			i += 1 + n
		}
		t.ranges = append(t.ranges, low, high)
	}
}

func classRune(p []rune) (rune, int) {
	if p[0] != '\\' {
		return p[0], 1
	}
	if len(p) < 2 {
		return 0, 0
	}
	return p[1], 2
}

// match goes back to the newest star only: an earlier one could not do better.
func match(p []token, s []rune) bool {
	back, from := -1, 0 // the newest star, and where its text ends for now
	i, j := 0, 0
	for j < len(s) {
		switch {
		case i < len(p) && p[i].kind == star:
			back, from = i, j
			i++
		case i < len(p) && p[i].fits(s[j]):
			i++
			j++
		case back >= 0:
			from++
			i, j = back+1, from
		default:
			return false
		}
	}
	for i < len(p) && p[i].kind == star {
		i++
	}
	return i == len(p)
}
