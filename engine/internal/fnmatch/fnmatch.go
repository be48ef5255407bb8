// Package fnmatch matches the patterns that operators and models write: * ? [a-z].
package fnmatch

import (
	"strings"
	"unicode/utf8"
)

// Match reports whether pattern describes all of s, as fnmatch does: * stands
// for any run of characters, also none and also with slashes, ? for one
// character, and [abc], [a-z] or [!a-z] for one of a set. A [ that is not closed
// stands for itself. It takes at most len(pattern) * len(s) steps.
func Match(pattern, s string) bool {
	p, i := 0, 0
	star, mark := -1, 0 // where to go on when the last * has to take one more
	for i < len(s) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				star, mark = p, i
				p++
				continue
			}
			r, size := utf8.DecodeRuneInString(s[i:])
			if next, ok := matchOne(pattern, p, r, s[i:i+size]); ok {
				p, i = next, i+size
				continue
			}
		}
		if star < 0 {
			return false
		}
		_, size := utf8.DecodeRuneInString(s[mark:])
		mark += size
		p, i = star+1, mark
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// matchOne matches the element of pattern at p with the character r, written
// raw, and returns where the next element begins.
func matchOne(pattern string, p int, r rune, raw string) (next int, ok bool) {
	switch pattern[p] {
	case '?':
		return p + 1, true
	case '[':
		if set, next, closed := cutSet(pattern, p); closed {
			return next, inSet(set, r)
		}
	}
	if !strings.HasPrefix(pattern[p:], raw) {
		return p, false
	}
	return p + len(raw), true
}

// cutSet returns what is between the [ at p and its ], which is not the first
// character of the set.
func cutSet(pattern string, p int) (set string, next int, closed bool) {
	from := p + 1
	if from < len(pattern) && (pattern[from] == '!' || pattern[from] == '^') {
		from++
	}
	if from >= len(pattern) {
		return "", p, false
	}
	end := strings.IndexByte(pattern[from+1:], ']')
	if end < 0 {
		return "", p, false
	}
	end += from + 1
	return pattern[p+1 : end], end + 1, true
}

func inSet(set string, r rune) bool {
	negated := set[0] == '!' || set[0] == '^'
	if negated {
		set = set[1:]
	}
	found := false
	for set != "" {
		lo, n := utf8.DecodeRuneInString(set)
		set = set[n:]
		hi := lo
		if len(set) > 1 && set[0] == '-' {
			hi, n = utf8.DecodeRuneInString(set[1:])
			set = set[1+n:]
		}
		found = found || lo <= r && r <= hi
	}
	return found != negated
}
