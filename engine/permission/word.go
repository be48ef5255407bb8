package permission

import (
	"strconv"
	"strings"

	"mvdan.cc/sh/v3/syntax"
)

// word is one word of a command as the program gets it, as far as that is known
// before it runs.
type word struct {
	// text is without quotes; what is computed is a placeholder in it.
	text string
	// known is how many bytes of text are certain.
	known int
	// split says that the word may become several, or none.
	split bool
	// glob says that the shell replaces it by names of files, or by several
	// words; tilde by a home folder.
	glob, braces, tilde bool
}

// fixed says that nothing in the word is computed; a glob may be in it.
func (w word) fixed() bool { return w.known == len(w.text) && !w.split }

// plain says that the word is exactly its text.
func (w word) plain() bool { return w.fixed() && !w.glob && !w.braces && !w.tilde }

// anything says that the word may be an option, or several words, whatever its
// text looks like.
func (w word) anything() bool {
	return !w.fixed() && (w.split || w.known == 0 || w.text[0] == '-')
}

// sprouts says that names of files in its place may be taken for options.
func (w word) sprouts() bool {
	return (w.glob || w.braces) && strings.IndexAny(w.text, "*?[{-") == 0
}

func plainWord(s string) word { return word{text: s, known: len(s)} }

// readWord reads a word of a command.
func readWord(w *syntax.Word) word {
	var b wordBuilder
	for _, p := range w.Parts {
		b.add(p, false)
	}
	if !b.computed {
		b.word.known = b.text.Len()
	}
	b.word.text = b.text.String()
	return b.word
}

type wordBuilder struct {
	text     strings.Builder
	word     word
	computed bool // known is final
	// brace and bracket say that one was opened, outside of quotes.
	brace, bracket bool
}

func (b *wordBuilder) add(p syntax.WordPart, quoted bool) {
	switch p := p.(type) {
	case *syntax.Lit:
		b.lit(p.Value, quoted)
	case *syntax.SglQuoted:
		if p.Dollar {
			// sh does not know this quote, so the word is not certain.
			b.compute("", false)
			b.text.WriteString(unescape(p.Value))
			return
		}
		b.text.WriteString(p.Value)
	case *syntax.DblQuoted:
		if p.Dollar {
			b.compute("", false)
		}
		for _, inner := range p.Parts {
			b.add(inner, true)
		}
	case *syntax.ParamExp:
		name := ""
		if p.Param != nil {
			name = p.Param.Value
		}
		b.compute("$"+name, !quoted || name == "@" || name == "*")
	case *syntax.CmdSubst:
		b.compute("$(…)", !quoted)
	case *syntax.ArithmExp:
		b.compute("$((…))", !quoted)
	case *syntax.ProcSubst:
		b.compute("<(…)", false)
	case *syntax.ExtGlob:
		b.word.glob = true
		b.text.WriteString(p.Op.String() + p.Pattern.Value + ")")
	default:
		b.compute("…", true)
	}
}

// compute adds what only the shell knows.
func (b *wordBuilder) compute(placeholder string, split bool) {
	if !b.computed {
		b.computed = true
		b.word.known = b.text.Len()
	}
	b.word.split = b.word.split || split
	b.text.WriteString(placeholder)
	if placeholder == "" {
		b.word.split = true
	}
}

// lit adds literal text with its escapes.
func (b *wordBuilder) lit(s string, quoted bool) {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '\\' && i+1 < len(s) {
			if next := s[i+1]; !quoted || strings.IndexByte("$`\"\\\n", next) >= 0 {
				i++
				if next != '\n' {
					b.text.WriteByte(next)
				}
				continue
			}
		}
		if !quoted {
			switch c {
			case '*', '?':
				b.word.glob = true
			case '[':
				b.bracket = true
			case ']':
				b.word.glob = b.word.glob || b.bracket
			case '{':
				b.brace = true
			case ',':
				b.word.braces = b.word.braces || b.brace
			case '.':
				b.word.braces = b.word.braces || b.brace && i > 0 && s[i-1] == '.'
			case '~':
				b.word.tilde = b.word.tilde || b.text.Len() == 0
			}
		}
		b.text.WriteByte(c)
	}
}

// unescape reads what is between $' and '.
func unescape(s string) string {
	var b strings.Builder
	for s != "" {
		r, multibyte, rest, err := strconv.UnquoteChar(s, 0)
		if err != nil {
			// An escape that Go does not have: \' and \" are the quote itself.
			b.WriteString(strings.TrimPrefix(s[:min(2, len(s))], `\`))
			s = s[min(2, len(s)):]
			continue
		}
		if multibyte {
			b.WriteRune(r)
		} else {
			b.WriteByte(byte(r))
		}
		s = rest
	}
	return b.String()
}

// join writes words as rules are matched with them. known is how much of the
// text is certain.
func join(words []word) (text string, known int) {
	var b strings.Builder
	known = -1
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if known < 0 && (!w.fixed() || w.braces) {
			known = b.Len()
			if w.fixed() {
				known += strings.IndexByte(w.text+"{", '{')
			} else {
				known += w.known
			}
		}
		b.WriteString(w.text)
	}
	if known < 0 {
		known = b.Len()
	}
	return b.String(), min(known, b.Len())
}

func plainWords(texts []string) []word {
	words := make([]word, len(texts))
	for i, s := range texts {
		words[i] = plainWord(s)
	}
	return words
}
