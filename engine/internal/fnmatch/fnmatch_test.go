package fnmatch

import (
	"regexp"
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"**", "a/b", true},
		{"git status*", "git status", true}, {"git status*", "git status -s a/b", true}, {"git status*", "git stash", false},
		{"src/*.go", "src/a/b.go", true}, {"a?c", "a/c", true}, {"a?c", "ac", false}, {"?", "ä", true},
		{"[a-c]x", "bx", true}, {"[a-c]x", "dx", false}, {"[!a-c]x", "dx", true}, {"[^a-c]x", "ax", false},
		{"[]]", "]", true}, {"[!]]", "]", false}, {"[a-]", "-", true}, {"[", "[", true}, {"[a", "[a", true}, {"[]", "[]", true},
		{`\*`, "*", true}, {`\*`, "a", false}, {`[\]]`, "]", true}, {`a\`, `a\`, true}, {"[z-a]", "m", false},
		{"*a*b*", "xxaxxbxx", true}, {"*a*b", "xxbxxa", false}, {"a*b*c", "abcbc", true},
	} {
		if got := Match(tc.pattern, tc.s); got != tc.want {
			t.Errorf("Match(%q, %q) is %v", tc.pattern, tc.s, got)
		}
	}
}

func TestHostilePatternsEnd(t *testing.T) {
	if Match(strings.Repeat("*a", 50)+"b", strings.Repeat("a", 50_000)) {
		t.Error("matched")
	}
}

func TestPrefixAndLiteral(t *testing.T) {
	for pattern, want := range map[string]string{"git *": "git ", `a\*b`: "a*b", "x[ab]": "x", "*": ""} {
		if got := Prefix(pattern); got != want {
			t.Errorf("Prefix(%q) is %q", pattern, got)
		}
		if got, want := Literal(pattern), pattern == `a\*b`; got != want {
			t.Errorf("Literal(%q) is %v", pattern, got)
		}
	}
}

// FuzzMatch compares with a regular expression that means the same.
func FuzzMatch(f *testing.F) {
	f.Add("git [a-z]*?", "git status")
	f.Add("*a*b*", "xaxb")
	f.Add("[!]-x]\\*", "a*")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		if len(pattern) > 100 || len(s) > 500 {
			t.Skip()
		}
		pattern, s = strings.ToValidUTF8(pattern, ""), strings.ToValidUTF8(s, "")
		var re strings.Builder
		re.WriteString(`(?s)\A`)
		for _, tok := range parse(pattern) {
			switch tok.kind {
			case one:
				re.WriteString(regexp.QuoteMeta(string(tok.r)))
			case any1:
				re.WriteString(".")
			case star:
				re.WriteString(".*")
			case class:
				set := ""
				for i := 0; i < len(tok.ranges); i += 2 {
					if tok.ranges[i] <= tok.ranges[i+1] {
						set += regexp.QuoteMeta(string(tok.ranges[i])) + "-" + regexp.QuoteMeta(string(tok.ranges[i+1]))
					}
				}
				set = strings.NewReplacer("^", `\^`, "--", `\--`).Replace(set)
				switch {
				case strings.Contains(set, "-\\-") || strings.ContainsAny(set, "&~:"):
					t.Skip()
				case set == "" && tok.not:
					re.WriteString(".")
				case set == "":
					re.WriteString(`[^\x00-\x{10FFFF}]`)
				case tok.not:
					re.WriteString("[^" + set + "]")
				default:
					re.WriteString("[" + set + "]")
				}
			}
		}
		re.WriteString(`\z`)
		want, err := regexp.Compile(re.String())
		if err != nil {
			t.Skip(err)
		}
		if got := Match(pattern, s); got != want.MatchString(s) {
			t.Errorf("Match(%q, %q) is %v; as %s it is %v", pattern, s, got, want, !got)
		}
	})
}
