package openai

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

const (
	maxLine   = 16 << 20 // bytes of one event: arguments may come in one piece
	maxStream = 64 << 20 // bytes of one answer, keep-alives included
)

var (
	dataField = []byte("data:")
	errorOpen = []byte(`{"error":`)
)

// lines reads an event stream and lets through the data of events, and blank
// lines. The rest, keep-alives above all, is dropped: go-openai would collect it
// and take it for the beginning of an error. An event that is an error ends the
// stream here, since go-openai loses the ones whose text it does not expect.
type lines struct {
	r    *bufio.Reader
	left int    // bytes the answer may still have
	out  []byte // of the line that is being handed on
	long []byte // reused for lines that do not fit r's buffer
}

func (l *lines) Read(p []byte) (int, error) {
	// As many lines are handed on as came together, but the reader never waits
	// for another one while it has something.
	n := 0
	for n < len(p) {
		if len(l.out) > 0 {
			c := copy(p[n:], l.out)
			l.out = l.out[c:]
			n += c
			continue
		}
		if n > 0 && !l.whole() {
			break
		}
		line, err := l.line()
		if err != nil {
			return n, err
		}
		if l.out, err = pass(line); err != nil {
			return n, err
		}
	}
	return n, nil
}

// whole reports whether the next line is in the buffer already.
func (l *lines) whole() bool {
	b, _ := l.r.Peek(l.r.Buffered())
	return bytes.IndexByte(b, '\n') >= 0
}

// line returns the next line with its end, valid until the next call. An
// unfinished last line is given as it is: whether the answer is complete is
// decided by what it says.
func (l *lines) line() ([]byte, error) {
	l.long = l.long[:0]
	for {
		part, err := l.r.ReadSlice('\n')
		l.left -= len(part)
		if l.left < 0 {
			return nil, errors.New("the answer is larger than 64 MB")
		}
		if err == nil && len(l.long) == 0 {
			return part, nil
		}
		l.long = append(l.long, part...)
		switch {
		case len(l.long) > maxLine:
			return nil, errors.New("one event of the answer is larger than 16 MB")
		case err == nil:
			return l.long, nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(l.long) > 0:
			l.long = append(l.long, '\n')
			return l.long, nil
		default:
			return nil, err
		}
	}
}

// pass returns what of a line is handed on; an error if the line is one.
func pass(line []byte) ([]byte, error) {
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		if len(bytes.TrimSpace(line)) == 0 {
			return []byte{'\n'}, nil
		}
		return nil, nil
	}
	data = bytes.TrimSpace(data)
	if !bytes.HasPrefix(data, errorOpen) {
		return line, nil
	}
	if e := embedded(data); e != nil {
		return nil, e
	}
	// An error that is null is none, but go-openai sees only how the line
	// begins: the space keeps it from looking.
	out := make([]byte, 0, len(data)+len("data: { \n"))
	out = append(out, "data: { "...)
	out = append(out, data[1:]...)
	return append(out, '\n'), nil
}
