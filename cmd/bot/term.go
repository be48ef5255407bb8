package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/rivo/uniseg"
	"golang.org/x/term"
)

// minColumn is the width that a column keeps, however narrow the terminal.
const minColumn = 8

// isTerminal reports whether somebody sees what is written to w at once.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// terminalWidth returns how many columns w has, 0 for no limit.
func terminalWidth(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok {
		return 0
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return width
}

// colour is how text looks on a terminal.
type colour string

// The colours there are, as terminals know them.
const (
	bold   colour = "1"
	dim    colour = "2"
	red    colour = "31"
	green  colour = "32"
	yellow colour = "33"
)

// palette paints, or leaves text as it is when it is false.
type palette bool

// newPalette returns the palette for w: one that paints only on a terminal whose
// user did not set NO_COLOR.
func newPalette(w io.Writer) palette {
	return palette(isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

func (p palette) paint(c colour, s string) string {
	if !p || s == "" || c == "" {
		return s
	}
	return "\x1b[" + string(c) + "m" + s + "\x1b[0m"
}

// printable makes text of strangers fit for a line of a terminal: it cannot
// move the cursor, change colours, break the line or turn its direction round.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == '\u200d': // joins emoji
			return r
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r), r == unicode.ReplacementChar:
			return '\ufffd'
		}
		return r
	}, s)
}

// table prints rows in aligned columns. On a terminal the widest columns are cut
// to fit its width; elsewhere nothing is cut.
type table struct {
	w     io.Writer
	width int // of the terminal; 0: no limit
	palette
	rows [][]string // the first is the header
	// tint chooses the colour of a cell, if it is set.
	tint func(header, cell string) colour
}

// newTable returns an empty table with these headers.
func newTable(w io.Writer, headers ...string) *table {
	return &table{w: w, width: terminalWidth(w), palette: newPalette(w), rows: [][]string{headers}}
}

// row adds a row; there are as many cells as headers.
func (t *table) row(cells ...string) {
	clean := make([]string, len(t.rows[0]))
	for i := range clean {
		if i < len(cells) {
			clean[i] = printable(cells[i])
		}
	}
	t.rows = append(t.rows, clean)
}

// flush prints the table.
func (t *table) flush() error {
	const gap = "  "
	widths := t.columns(len(gap))
	var b strings.Builder
	for i, row := range t.rows {
		for j, cell := range row {
			cell = fit(cell, widths[j])
			pad := strings.Repeat(" ", widths[j]-uniseg.StringWidth(cell))
			switch {
			case i == 0:
				cell = t.paint(dim, cell)
			case t.tint != nil:
				cell = t.paint(t.tint(t.rows[0][j], cell), cell)
			}
			b.WriteString(cell)
			if j < len(row)-1 {
				b.WriteString(pad + gap)
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// columns returns the widths of the columns, the widest ones reduced until a row
// fits.
func (t *table) columns(gap int) []int {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for j, cell := range row {
			widths[j] = max(widths[j], uniseg.StringWidth(cell))
		}
	}
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for t.width > 0 && total > t.width {
		widest := 0
		for j, w := range widths {
			if w > widths[widest] {
				widest = j
			}
		}
		if widths[widest] <= minColumn {
			break
		}
		widths[widest]--
		total--
	}
	return widths
}

// fit cuts s to a width in columns, without cutting a character in two.
func fit(s string, width int) string {
	if uniseg.StringWidth(s) <= width {
		return s
	}
	var b strings.Builder
	used := 0
	for g := uniseg.NewGraphemes(s); g.Next(); {
		if used += g.Width(); used > width-1 {
			break
		}
		b.WriteString(g.Str())
	}
	return strings.TrimRight(b.String(), " ") + "…"
}

// printJSON prints v for programs, indented.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// newSpinner shows that something is under way, until stop is called; only on a
// terminal.
func newSpinner(w io.Writer, text string) (stop func()) {
	if !isTerminal(w) {
		return func() {}
	}
	return spin(w, text)
}

// spin draws text with something that moves. It begins after a moment: what is
// done at once needs no spinner.
func spin(w io.Writer, text string) (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(120 * time.Millisecond)
		defer tick.Stop()
		frames := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				fmt.Fprintf(w, "\r%c %s", frames[i%len(frames)], printable(text))
			case <-done:
				if i > 0 {
					fmt.Fprint(w, "\r\x1b[K")
				}
				return
			}
		}
	}()
	return sync.OnceFunc(func() {
		close(done)
		<-ended
	})
}

// age writes how long ago something was: "now", "42s", "17m", "5h", "3d".
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "now"
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// size writes a number of bytes: "512 B", "1.5 MB", in steps of a thousand.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	v, unit := float64(n)/1000, 0
	for v >= 999.95 && unit < 4 {
		v, unit = v/1000, unit+1
	}
	return fmt.Sprintf("%.1f %cB", v, "kMGTP"[unit])
}
