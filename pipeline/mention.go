package pipeline

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"trill/adapters"
)

// The reasons for which a message is ignored, as the inbox records them.
const (
	reasonKind    = "not a message of a person"
	reasonBot     = "from a bot"
	reasonMention = "not addressed to the bot"
	reasonAccess  = "sender has no access"
	reasonLimit   = "over a rate limit"
)

// addressed decides whether a person's message is for the bot, and returns its
// text without the trigger where that is only a way to address the bot.
func addressed(m *adapters.InboundMessage, trigger string) (text string, ok bool) {
	at, found := findTrigger(m.Text, trigger)
	switch {
	case found:
		return stripTrigger(m.Text, at, len(trigger)), true
	case m.Mentioned, m.Direct, m.Quote != nil && m.Quote.Sender.Self:
		return strings.TrimSpace(m.Text), true
	}
	return "", false
}

// findTrigger returns where the trigger stands as a word of its own: outside of
// code, quotes, addresses and links.
func findTrigger(text, trigger string) (at int, ok bool) {
	if trigger == "" {
		return 0, false
	}
	fence := ""
	for start := 0; start <= len(text); {
		end := start + len(text[start:])
		if i := strings.IndexByte(text[start:], '\n'); i >= 0 {
			end = start + i
		}
		line := text[start:end]
		trimmed := strings.TrimLeft(line, " \t")
		mark := fenceMark(trimmed)
		switch {
		case fence != "":
			if mark != "" && strings.HasPrefix(mark, fence) && strings.Trim(trimmed, mark[:1]+" \t\r") == "" {
				fence = ""
			}
		case mark != "":
			fence = mark
		case strings.HasPrefix(trimmed, ">"), strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "\t"):
			// quoted, or indented code
		default:
			if i, ok := findInLine(line, trigger); ok {
				return start + i, true
			}
		}
		start = end + 1
	}
	return 0, false
}

// fenceMark returns the run of ` or ~ that opens or closes a code block.
func fenceMark(line string) string {
	for _, c := range []string{"`", "~"} {
		n := len(line) - len(strings.TrimLeft(line, c))
		// An opening of backticks with another one behind it is inline code.
		if n >= 3 && (c == "~" || !strings.Contains(line[n:], c)) {
			return line[:n]
		}
	}
	return ""
}

func findInLine(line, trigger string) (int, bool) {
	masked := maskLine(line)
	for i := 0; i+len(trigger) <= len(line); i++ {
		if !masked[i] && strings.EqualFold(line[i:i+len(trigger)], trigger) &&
			startsWord(line[:i]) && endsWord(line[i+len(trigger):]) {
			return i, true
		}
	}
	return 0, false
}

// startsWord reports whether a mention may begin after before.
func startsWord(before string) bool {
	r, _ := utf8.DecodeLastRuneInString(before)
	if r == utf8.RuneError {
		return before == ""
	}
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune(`_.-+/\@#&=%$~`, r)
}

// endsWord reports whether a mention may end before after: neither in the middle
// of a word, nor of an address such as "@trill.example" or "@trill@host".
func endsWord(after string) bool {
	r, n := utf8.DecodeRuneInString(after)
	if r == utf8.RuneError {
		return after == ""
	}
	if unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r) || r == '_' || r == '@' {
		return false
	}
	if strings.ContainsRune(`.-/\:+=`, r) {
		next, _ := utf8.DecodeRuneInString(after[n:])
		return !unicode.IsLetter(next) && !unicode.IsDigit(next) && next != '_' && next != '/'
	}
	return true
}

// maskLine marks the bytes of a line that are inline code, a link, or between
// quotation marks.
func maskLine(line string) []bool {
	masked := make([]bool, len(line))
	mask := func(from, to int) {
		for i := from; i < to; i++ {
			masked[i] = true
		}
	}
	for i := 0; i < len(line); {
		n := len(line[i:]) - len(strings.TrimLeft(line[i:], "`"))
		if n == 0 {
			i++
			continue
		}
		if close := closingTicks(line[i+n:], n); close >= 0 {
			mask(i, i+n+close+n)
			i += n + close
		}
		i += n
	}
	for i := 0; i < len(line); {
		end := i + strings.IndexFunc(line[i:]+" ", unicode.IsSpace)
		if word := line[i:end]; strings.Contains(word, "://") || strings.HasPrefix(strings.ToLower(word), "www.") {
			mask(i, end)
		}
		i = end + 1
	}
	for _, q := range [][2]string{{`"`, `"`}, {"“", "”"}, {"„", "“"}, {"«", "»"}, {"»", "«"}, {"‘", "’"}, {"「", "」"}} {
		for i := 0; i < len(line); {
			open := strings.Index(line[i:], q[0])
			if open < 0 {
				break
			}
			open += i
			if q[0] == `"` && !startsWord(line[:open]) { // 5" is a length
				i = open + 1
				continue
			}
			shut := strings.Index(line[open+len(q[0]):], q[1])
			if shut < 0 {
				break
			}
			shut += open + len(q[0])
			if !masked[open] {
				mask(open, shut)
			}
			i = shut + len(q[1])
		}
	}
	// 'word', but not the apostrophes of it's and don't.
	for i := strings.IndexByte(line, '\''); i >= 0; {
		if shut := strings.IndexByte(line[i+1:], '\''); shut >= 0 && startsWord(line[:i]) && endsWord(line[i+shut+2:]) {
			mask(i, i+1+shut)
		}
		next := strings.IndexByte(line[i+1:], '\'')
		if next < 0 {
			break
		}
		i += 1 + next
	}
	return masked
}

// closingTicks finds a run of exactly n backticks.
func closingTicks(s string, n int) int {
	for i := 0; i < len(s); {
		run := len(s[i:]) - len(strings.TrimLeft(s[i:], "`"))
		if run == n {
			return i
		}
		i += max(run, 1)
	}
	return -1
}

// stripTrigger takes the trigger away where it only addresses the bot, at the
// beginning or the end of the text; elsewhere it is part of the sentence.
func stripTrigger(text string, at, n int) string {
	before, after := text[:at], text[at+n:]
	if strings.TrimSpace(before) == "" {
		after = strings.TrimLeft(after, " \t\r\n")
		if len(after) > 0 && strings.ContainsRune(",:;!", rune(after[0])) {
			after = after[1:]
		}
		return strings.TrimSpace(after)
	}
	if tail := strings.TrimSpace(after); strings.Trim(tail, ".,!?;:") == "" {
		return strings.TrimRight(before, " \t\r\n,;") + tail
	}
	return strings.TrimSpace(text)
}
