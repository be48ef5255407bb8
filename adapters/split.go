package adapters

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/rivo/uniseg"
)

const (
	// minSplit is the smallest limit that leaves room for a code fence around
	// something.
	minSplit = 32
	// maxFenceIndent is how far a fence may be indented, in columns. Lists in
	// lists push fences to the right; what is further out is not a fence.
	maxFenceIndent = 32
	// maxFenceInfo is up to how many bytes the words after a fence ("go") are
	// repeated in the next part.
	maxFenceInfo = 32
	// maxCluster is how far back a grapheme cluster is looked for, in bytes.
	// Longer ones exist only to annoy and are cut.
	maxCluster = 256
)

// Split cuts Markdown into parts whose length is at most limit, in the unit of
// the length function: code points, UTF-16 units, bytes after escaping. length
// must not be larger for a whole than the sum for its pieces. A limit below 32
// counts as 32.
//
// A part ends at a paragraph if one ends in its second half, else at a line,
// else at a word, else between two grapheme clusters. A code fence that is
// still open there is closed, and opened again in the next part; a fence that
// the text never closes is closed too. White space around a cut is dropped;
// there is no part without anything else.
func Split(text string, limit int, length func(string) int) []string {
	limit = max(limit, minSplit)
	var parts []string
	s := splitter{limit: limit, length: length}
	for rest := trimLines(text); rest != ""; {
		var part string
		part, rest = s.next(rest)
		if part != "" {
			parts = append(parts, part)
		}
	}
	return parts
}

type splitter struct {
	limit  int
	length func(string) int
	open   fence // continues in the text to come
	header string
}

// next takes one part off the text. It always gets shorter.
func (s *splitter) next(text string) (part, rest string) {
	text, s.header = s.reopen(text)
	for budget := s.limit - s.length(s.header); ; {
		n := s.prefix(text, budget)
		cut, after := s.cut(text, n)
		body, end := s.body(text[:cut])
		part = s.header + body
		if end.open() {
			part += "\n" + strings.Repeat(" ", end.shown) + end.marks
		}
		over := s.length(part) - s.limit
		if over <= 0 || budget <= 1 {
			s.open = end
			if strings.TrimSpace(body) == "" {
				part = ""
			}
			return part, trimLines(text[cut+after:])
		}
		// The closing fence did not fit. Halving ends also where every
		// shorter body has a fence of its own.
		budget = max(budget-over, budget/2)
	}
}

// reopen returns the line that opens the carried fence again, and the text
// after it. Where the fence ends right there anyway, it is over.
func (s *splitter) reopen(text string) (rest, header string) {
	if !s.open.open() {
		return text, ""
	}
	line, after, _ := strings.Cut(text, "\n")
	if s.open.closedBy(line) {
		s.open = fence{}
		return trimLines(after), ""
	}
	header = s.open.marks + s.open.info + "\n"
	if 2*s.length(header) > s.limit/2 {
		s.open = fence{} // a fence as long as this is no code
		return text, ""
	}
	s.open.shown = 0
	s.open.carried = true
	return text, header
}

// prefix returns how many bytes of the text, at least one rune, fit the budget.
func (s *splitter) prefix(text string, budget int) int {
	_, first := utf8.DecodeRuneInString(text)
	fits, used, step := first, s.length(text[:first]), max(budget, 1)
	grow := true
	for fits < len(text) {
		to := min(fits+step, len(text))
		for to > fits && to < len(text) && !utf8.RuneStart(text[to]) {
			to--
		}
		if to > fits {
			if l := s.length(text[fits:to]); used+l <= budget {
				fits, used = to, used+l
				if grow {
					step *= 2
				}
				continue
			}
		}
		// What is left of the way is shorter than step: halve it until a
		// single rune does not fit either.
		grow = false
		if step /= 2; step < utf8.UTFMax {
			_, n := utf8.DecodeRuneInString(text[fits:])
			l := s.length(text[fits : fits+n])
			if used+l > budget {
				break
			}
			fits, used, step = fits+n, used+l, utf8.UTFMax
		}
	}
	return fits
}

// cut returns where to cut the text that fits up to n, and how many bytes of
// white space after that belong to no part.
func (s *splitter) cut(text string, n int) (at, skip int) {
	if n == len(text) {
		return n, 0
	}
	half := n / 2
	if at := s.cutLine(text, n, half); at > 0 {
		return at, 0
	}
	for i := n; i > half; i-- {
		if text[i] == ' ' || text[i] == '\t' {
			word := strings.TrimLeft(text[i:], " \t")
			if run(word) < 3 { // would be a fence at the start of a line
				return i, len(text) - i - len(word)
			}
		}
	}
	return cutCluster(text, n), 0
}

// cutLine returns the best end of a line after half, 0 when there is none.
func (s *splitter) cutLine(text string, n, half int) int {
	const (
		inCode    = iota // better than nothing
		paraCode         // after an empty line in code
		line             // outside code
		paragraph        // after an empty line
		kinds
	)
	var best [kinds]int
	f, blank := s.open, false
	for start := 0; start < n; {
		end := strings.IndexByte(text[start:], '\n')
		if end < 0 {
			end = len(text)
		} else {
			end += start
		}
		before := f
		f = f.after(text[start:end])
		nowBlank := strings.TrimSpace(text[start:end]) == ""
		// Whether to cut before this line is known only now. Not before a
		// closing fence, nor after an opening one: an empty block is left.
		closing := before.open() && !f.open()
		if start > half && !closing && !nowBlank {
			kind := line
			if before.open() {
				kind = inCode
			}
			if blank {
				kind++
			}
			if !before.fresh {
				best[kind] = start
			}
		}
		blank = nowBlank
		if end > n || end == len(text) {
			break
		}
		if end == n { // the line fits to its end
			kind := line
			if f.open() {
				kind = inCode
			}
			if !f.fresh {
				best[kind] = end
			}
		}
		start = end + 1
	}
	if best[paragraph] > 0 {
		return best[paragraph]
	}
	if best[line] > 0 {
		return best[line]
	}
	if best[paraCode] > 0 {
		return best[paraCode]
	}
	return best[inCode]
}

// cutCluster returns the last boundary of a grapheme cluster up to n.
func cutCluster(text string, n int) int {
	start := max(0, n-maxCluster)
	for start < n && !utf8.RuneStart(text[start]) {
		start++
	}
	for i := start; i < n; i++ {
		if text[i] < utf8.RuneSelf { // a cluster starts here for certain
			start = i
			break
		}
	}
	at, state := start, -1
	for rest := text[start:min(len(text), n+maxCluster)]; rest != ""; {
		var cluster string
		cluster, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		if at+len(cluster) > n {
			break
		}
		at += len(cluster)
	}
	if at <= start {
		return n
	}
	return at
}

// body returns the text of a part as it is shown after the header, and the
// fence that is open at its end.
func (s *splitter) body(text string) (string, fence) {
	f := s.open
	if !f.carried || f.indent == 0 {
		for rest := text; rest != ""; {
			var line string
			line, rest, _ = strings.Cut(rest, "\n")
			f = f.after(line)
		}
		return strings.TrimRight(text, " \t\r\n"), f
	}
	// The fence was opened further right, in a list that is not in this part.
	// Its lines move to the left as a renderer would move them.
	var b strings.Builder
	for rest := text; rest != ""; {
		line, after, more := strings.Cut(rest, "\n")
		next := f.after(line)
		if f.carried {
			line = dedent(line, f.indent)
		}
		b.WriteString(line)
		if more {
			b.WriteByte('\n')
		}
		f, rest = next, after
	}
	return strings.TrimRight(b.String(), " \t\r\n"), f
}

// fence is an open code fence; the zero value is none.
type fence struct {
	marks   string // of the opening line
	info    string // after the marks, empty when too long to repeat
	indent  int    // columns in front of the marks in the text
	shown   int    // columns in front of the marks in the part
	carried bool   // opened in an earlier part
	fresh   bool   // no line since it was opened
}

func (f fence) open() bool { return f.marks != "" }

// after returns the fence that is open after the line.
func (f fence) after(line string) fence {
	if !f.open() {
		return openFence(line)
	}
	if f.closedBy(line) {
		return fence{}
	}
	f.fresh = false
	return f
}

func (f fence) closedBy(line string) bool {
	indent, rest := indentation(line)
	n := run(rest)
	return n >= len(f.marks) && rest[0] == f.marks[0] && indent <= f.indent+3 &&
		strings.TrimSpace(rest[n:]) == ""
}

// openFence returns the fence that the line opens, if it does. The line may
// start with list marks.
func openFence(line string) fence {
	indent, rest := indentation(line)
	for {
		n := listMark(rest)
		if n == 0 || indent > maxFenceIndent {
			break
		}
		more, after := indentation(rest[n:])
		indent, rest = indent+n+more, after
	}
	n := run(rest)
	if n < 3 || indent > maxFenceIndent {
		return fence{}
	}
	info := strings.TrimRight(rest[n:], " \t\r")
	if rest[0] == '`' && strings.IndexByte(info, '`') >= 0 {
		return fence{} // code in a line
	}
	if len(info) > maxFenceInfo {
		info = ""
	}
	return fence{marks: rest[:n], info: info, indent: indent, shown: indent, fresh: true}
}

// run counts the backticks or tildes at the start.
func run(s string) int {
	if s == "" || s[0] != '`' && s[0] != '~' {
		return 0
	}
	n := 1
	for n < len(s) && s[n] == s[0] {
		n++
	}
	return n
}

// listMark returns the length of a list mark at the start, without the space
// that has to follow it.
func listMark(s string) int {
	n := 0
	for n < len(s) && n < 9 && '0' <= s[n] && s[n] <= '9' {
		n++
	}
	switch {
	case n >= len(s):
		return 0
	case n > 0 && s[n] != '.' && s[n] != ')':
		return 0
	case n == 0 && s[n] != '-' && s[n] != '*' && s[n] != '+':
		return 0
	}
	n++
	if n < len(s) && (s[n] == ' ' || s[n] == '\t') {
		return n
	}
	return 0
}

// indentation returns the columns of white space in front, and what follows. It
// stops looking where no fence can be any more.
func indentation(s string) (int, string) {
	columns := 0
	for i := range len(s) {
		if columns > maxFenceIndent+4 {
			return columns, s[i:]
		}
		switch s[i] {
		case ' ':
			columns++
		case '\t':
			columns += 4 - columns%4
		default:
			return columns, s[i:]
		}
	}
	return columns, ""
}

// dedent removes up to n columns of white space.
func dedent(line string, n int) string {
	for n > 0 && line != "" {
		switch line[0] {
		case ' ':
			n--
		case '\t':
			n -= 4
		default:
			return line
		}
		line = line[1:]
	}
	return line
}

// trimLines removes empty lines in front. The indentation of the first line
// stays: it means something in lists and code.
func trimLines(s string) string {
	text := strings.TrimLeftFunc(s, unicode.IsSpace)
	if text == "" {
		return ""
	}
	space := len(s) - len(text)
	return s[strings.LastIndexByte(s[:space], '\n')+1:]
}
