package fnmatch

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestPatterns(t *testing.T) {
	tests := []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"a", "a", true},
		{"*", "", true},
		{"*", "a/b\nc", true},
		{"a*", "a/b/c", true},
		{"*.go", "x/y.go", true},
		{"*.go", "x/y.go/", false},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXbYbZ", false},
		{"?", "ö", true},
		{"?", "", false},
		{"[a-c]x", "bx", true},
		{"[a-c]x", "dx", false},
		{"[!a-c]x", "dx", true},
		{"[^a-c]x", "ax", false},
		{"[]]", "]", true},
		{"[a-]", "-", true},
		{"[*]", "*", true},
		{"[*]", "x", false},
		{"[ -f *", "[ -f x ]", true},
		{"[", "[", true},
		{"[!", "[!", true},
		{"[ä-ü]", "ö", true},
		{"**a**", "xax", true},
		{`\*`, `\x`, true},
	}
	for _, tt := range tests {
		if got := Match(tt.pattern, tt.s); got != tt.want {
			t.Errorf("Match(%q, %q) = %v, want %v", tt.pattern, tt.s, got, tt.want)
		}
	}
}

func TestHostilePatternsEnd(t *testing.T) {
	if Match(strings.Repeat("*a", 50)+"b", strings.Repeat("a", 50_000)) {
		t.Error("matched")
	}
}

// matchSlow is Match as one would define it.
func matchSlow(pattern, s string) bool {
	if pattern == "" {
		return s == ""
	}
	if pattern[0] == '*' {
		if matchSlow(pattern[1:], s) {
			return true
		}
		if s == "" {
			return false
		}
		_, n := utf8.DecodeRuneInString(s)
		return matchSlow(pattern, s[n:])
	}
	if s == "" {
		return false
	}
	r, n := utf8.DecodeRuneInString(s)
	next, ok := matchOne(pattern, 0, r, s[:n])
	return ok && matchSlow(pattern[next:], s[n:])
}

func FuzzMatch(f *testing.F) {
	for _, s := range [][2]string{{"a*b", "axb"}, {"[a-c]?*", "bcd"}, {"*[!x]*", "xyx"}, {"[", "["}, {"ö*", "ö\xff"}, {"*a*a*b", "aaaab"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 12 || len(s) > 16 {
			return // the definition takes exponential time
		}
		if got, want := Match(pattern, s), matchSlow(pattern, s); got != want {
			t.Errorf("Match(%q, %q) = %v, want %v", pattern, s, got, want)
		}
	})
}
