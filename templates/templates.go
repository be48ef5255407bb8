// Package templates holds the texts that the bot says itself, without a model:
// answers to commands, questions, refusals. They are Markdown, one template each,
// and have no logic beyond choosing words.
package templates

import (
	"embed"
	"fmt"
	"strings"
	"text/template"
	"time"
	"unicode"
	"unicode/utf8"
)

//go:embed chat/*.md
var files embed.FS

// Chat returns the templates for chat rooms, by their file name without ".md".
func Chat() (*template.Template, error) {
	entries, err := files.ReadDir("chat")
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	root := template.New("").Option("missingkey=error").Funcs(template.FuncMap{
		"upper":  strings.ToUpper,
		"number": number,
		"wait":   wait,
		"day":    func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04") },
		"line":   oneLine,
		"sentence": func(s string) string {
			r, n := utf8.DecodeRuneInString(s)
			return strings.TrimRight(string(unicode.ToUpper(r))+s[n:], ".") + "."
		},
	})
	for _, e := range entries {
		text, err := files.ReadFile("chat/" + e.Name())
		if err != nil {
			return nil, fmt.Errorf("read templates: %w", err)
		}
		if _, err := root.New(strings.TrimSuffix(e.Name(), ".md")).Parse(string(text)); err != nil {
			return nil, fmt.Errorf("template %s: %w", e.Name(), err)
		}
	}
	return root, nil
}

// number writes 1234567 as 1,234,567.
func number(n int64) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// wait writes a duration in words, to the minute.
func wait(d time.Duration) string {
	switch m := int(d.Round(time.Minute) / time.Minute); {
	case m <= 1:
		return "a minute"
	case m < 90:
		return fmt.Sprintf("%d minutes", m)
	default:
		return fmt.Sprintf("%d hours", (m+30)/60)
	}
}

// oneLine makes a text that others wrote fit for a list: one line without markup.
func oneLine(s string) string {
	s = strings.Map(func(r rune) rune {
		if strings.ContainsRune("`*_[]<>#|", r) {
			return ' '
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}
