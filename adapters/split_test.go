package adapters_test

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"trill/adapters"
)

func split(text string, limit int) []string {
	return adapters.Split(text, limit, utf8.RuneCountInString)
}

func TestSplitCutsWhereAReaderWould(t *testing.T) {
	word := strings.Repeat("x", 20)
	cases := map[string]struct {
		text  string
		limit int
		want  []string
	}{
		"nothing":           {"", 40, nil},
		"white space only":  {" \n\t\n ", 40, nil},
		"short":             {"hello", 40, []string{"hello"}},
		"exactly the limit": {strings.Repeat("ä", 40), 40, []string{strings.Repeat("ä", 40)}},
		"white space around goes": {
			"\n\n  hello \n\n", 40, []string{"  hello"},
		},
		"at a paragraph, though a line ends later": {
			word + "\nsecond line\n\nthird\nfourth line is long", 45,
			[]string{word + "\nsecond line", "third\nfourth line is long"},
		},
		"at a line when the paragraph is too far in front": {
			"p\n\n" + word + "\n" + word + "\n" + word, 50,
			[]string{"p\n\n" + word + "\n" + word, word},
		},
		"at a word": {
			word + " " + word + "  " + word, 45,
			[]string{word + " " + word, word},
		},
		"inside a word when it is longer than a part": {
			strings.Repeat("x", 70), 32,
			[]string{strings.Repeat("x", 32), strings.Repeat("x", 32), strings.Repeat("x", 6)},
		},
		"not inside an emoji family": {
			strings.Repeat("x", 30) + "👩‍👩‍👧‍👦" + "tail", 33,
			[]string{strings.Repeat("x", 30), "👩‍👩‍👧‍👦tail"},
		},
		"not between a letter and its accent": {
			strings.Repeat("x", 31) + "e\u0301" + "tail", 32,
			[]string{strings.Repeat("x", 31), "e\u0301tail"},
		},
		"a code block is closed and opened again": {
			"```go\n" + word + "\n" + word + "\n" + word + "\n```\nafter", 60,
			[]string{"```go\n" + word + "\n" + word + "\n```", "```go\n" + word + "\n```\nafter"},
		},
		"rather in front of a code block than in it": {
			"intro " + word + "\n```\n" + word + "\n" + word + "\n```", 50,
			[]string{"intro " + word, "```\n" + word + "\n" + word + "\n```"},
		},
		"tildes with backticks inside": {
			"~~~ md\n" + word + "\n```\n" + word + "\n~~~", 42,
			[]string{"~~~ md\n" + word + "\n```\n~~~", "~~~ md\n" + word + "\n~~~"},
		},
		"a block nobody closed": {
			"```\ncode", 40, []string{"```\ncode\n```"},
		},
		"the cut falls right before the closing fence": {
			"```\n" + strings.Repeat("x", 36) + "\n```\nafter the block", 44,
			[]string{"```\n" + strings.Repeat("x", 36) + "\n```", "after the block"},
		},
		"a block in a list moves to the left in the next part": {
			"- item\n  ```sh\n  " + word + "\n    " + word + "\n  ```\n- next", 50,
			[]string{"- item\n  ```sh\n  " + word + "\n  ```", "```sh\n  " + word + "\n```\n- next"},
		},
		"a block that starts behind a list mark": {
			"1. ```sh\n   " + word + "\n   " + word + "\n   ```\nend", 50,
			[]string{"1. ```sh\n   " + word + "\n   ```", "```sh\n" + word + "\n```\nend"},
		},
		"an absurd info string is not repeated": {
			"```" + strings.Repeat("i", 50) + "\n" + word + "\n" + word + "\n" + word + "\n```", 90,
			[]string{
				"```" + strings.Repeat("i", 50) + "\n" + word + "\n```",
				"```\n" + word + "\n" + word + "\n```",
			},
		},
		"code in a line is no fence": {
			"```not` a fence``` " + word + " " + word, 44,
			[]string{"```not` a fence``` " + word, word},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, split(c.text, c.limit)); diff != "" {
				t.Errorf("parts (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSplitCountsInTheUnitOfThePlatform(t *testing.T) {
	escaped := func(s string) int {
		return len(strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(s))
	}
	text := strings.Repeat("a & b <c> ", 200)
	parts := adapters.Split(text, 100, escaped)
	for _, p := range parts {
		if n := escaped(p); n > 100 {
			t.Errorf("part of %d, limit 100: %q", n, p)
		}
	}
	if diff := cmp.Diff(squeeze(text), squeeze(strings.Join(parts, ""))); diff != "" {
		t.Error(diff)
	}
}

// Text of these pieces has fences of all kinds, cut in all places.
var pieces = []string{
	"word ", "x", "\n", "\n", "\n\n", "```", "~~~", "````", "`", "~", "```αβ\n", "~~~ γδ\n", "\n```\n", "\n~~~\n",
	"\n````\n", " ", "  ", "\t", "é", "e\u0301", "👩‍👩‍👧", "🇩🇪", "日本語", "\r\n", "- ", "1. ", "    ", "@all",
	strings.Repeat("y", 50), strings.Repeat("`", 40), strings.Repeat("~", 30) + "\n", "```" + strings.Repeat("ω", 60) + "\n",
}

func TestSplitProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 120).Draw(t, "pieces"), "")
		limit := rapid.IntRange(32, 200).Draw(t, "limit")
		checkParts(t, text, limit)
	})
}

func FuzzSplit(f *testing.F) {
	f.Add("```go\nfunc main() {}\n```\n\ntext", 32)
	f.Add(strings.Join(pieces, ""), 40)
	f.Add(strings.Repeat("`", 300), 33)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		checkParts(t, text, 32+int(uint(limit)%500))
	})
}

func checkParts(t interface{ Errorf(string, ...any) }, text string, limit int) {
	parts := split(text, limit)
	for i, p := range parts {
		if n := utf8.RuneCountInString(p); n > limit {
			t.Errorf("part %d has %d code points, limit %d: %q", i, n, limit, p)
		}
		if strings.TrimSpace(p) == "" {
			t.Errorf("part %d is blank: %q", i, p)
		}
		if !balanced(p) {
			t.Errorf("part %d leaves a code block open: %q", i, p)
		}
	}
	if !utf8.ValidString(text) {
		return // its pieces may make runes that were not there
	}
	// The parts have all the text, and more only where the line that opens a
	// fence is repeated.
	rest := letters(strings.Join(parts, ""))
	for _, r := range letters(text) {
		i := strings.IndexRune(rest, r)
		if i < 0 {
			t.Errorf("lost %q and what follows of %q in %q", r, text, parts)
			break
		}
		rest = rest[i+1:]
	}
}

var listMarks = regexp.MustCompile(`^(?:(?:[-*+]|[0-9]{1,9}[.)])[ \t]+)*`)

// balanced reads a part as CommonMark does as far as fences go, with two
// liberties that lists need: a fence may follow list marks, and be indented up
// to 32 columns.
func balanced(part string) bool {
	var open string
	var openIndent int
	for line := range strings.SplitSeq(part, "\n") {
		line = strings.TrimSuffix(line, "\r")
		for {
			front := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
			tab := strings.IndexByte(front, '\t')
			if tab < 0 {
				break
			}
			line = line[:tab] + strings.Repeat(" ", 4-tab%4) + line[tab+1:]
		}
		text := strings.TrimLeft(line, " ")
		if open == "" {
			text = strings.TrimLeft(text[len(listMarks.FindString(text)):], " ")
		}
		marks := text[:len(text)-len(strings.TrimLeft(text, text[:min(1, len(text))]))]
		if len(marks) < 3 || marks[0] != '`' && marks[0] != '~' {
			continue
		}
		info, indent := text[len(marks):], len(line)-len(text)
		switch {
		case open == "":
			if indent <= 32 && (marks[0] == '~' || !strings.Contains(info, "`")) {
				open, openIndent = marks, indent
			}
		case marks[0] == open[0] && len(marks) >= len(open) && strings.TrimSpace(info) == "" && indent <= openIndent+3:
			open = ""
		}
	}
	return open == ""
}

// letters is the text without what splitting may drop: white space and the marks
// of fences.
func letters(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '`' || r == '~' {
			return -1
		}
		return r
	}, squeeze(s))
}

func squeeze(s string) string { return strings.Join(strings.Fields(s), "") }

func TestSplitOfAMegabyteOfAnythingEnds(t *testing.T) {
	const size = 1 << 20
	for name, unit := range map[string]string{
		"letters": "x", "newlines and a letter": "\n\n\n\n\n\n\nx", "backticks": "`", "fences": "```\n", "open fences": "```x\n~~~\n",
		"indented fences": "        ```\n", "spaces": " ", "marks": "\u0301", "flags": "🇩🇪", "invalid": "\x80",
		"code in lists": "- a\n  ```sh\n  ls -l\n", "list marks": "- ", "words": "lorem ipsum ",
	} {
		text := strings.Repeat(unit, size/len(unit))
		for _, limit := range []int{32, 2000, 32_000} {
			parts := split(text, limit)
			for i, p := range parts {
				if utf8.RuneCountInString(p) > limit || strings.TrimSpace(p) == "" {
					t.Fatalf("%s: part %d of %d is blank or too long", name, i, len(parts))
				}
			}
		}
	}
}

func BenchmarkSplit(b *testing.B) {
	para := strings.Repeat("Lorem ipsum dolor sit amet, consectetur. ", 12) + "\n\n"
	code := "```go\n" + strings.Repeat("\tfmt.Println(\"hello\")\n", 20) + "```\n\n"
	text := strings.Repeat(para+code, (1<<20)/(len(para)+len(code)))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		split(text, 32_000)
	}
}
