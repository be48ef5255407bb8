package permission

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"path"
	"strings"

	"trill/engine/tool"
)

const shellTool = "shell"

// kind says what a part is.
type kind int

const (
	command   kind = iota // one command of a line
	inert                 // a command that does nothing by itself: true, exit
	read                  // a file that a command is given
	write                 // a file that a command's output goes to
	file                  // the path of a file tool
	arguments             // the arguments of any other tool
)

// below is what a rule's text has to be continued with to match what is under
// it: the arguments of a command, the files of a folder.
func (k kind) below() string {
	switch k {
	case command, inert:
		return " *"
	case read, write, file:
		return "/*"
	}
	return ""
}

// part is what is judged for itself.
type part struct {
	kind kind
	tool string // the call's
	text string // shown, and what a rule that allows must match
	path string // of a write
	// forms is everything the part may turn out to be, for rules that ask or
	// deny.
	forms []form
	// risks are what a rule with wildcards must name to allow the part.
	risks []risk
	// unclear is why no rule for particular commands can allow the part.
	unclear string
}

// opaque reports whether nobody knows what the part runs.
func (p part) opaque() bool {
	for _, f := range p.forms {
		if f.known == 0 && f.text != "" {
			return true
		}
	}
	return false
}

// form is a text that rules are matched with.
type form struct {
	kind kind
	tool string // whose rules it is for
	text string
	// known is how many bytes of text are certain before it runs; what follows
	// may be anything.
	known int
}

func certain(k kind, tool, text string) form {
	return form{kind: k, tool: tool, text: text, known: len(text)}
}

// partsOf reads a call. What cannot be read cannot be judged.
func partsOf(call tool.Call) ([]part, error) {
	args, err := readArgs(call.Args)
	if err != nil {
		return nil, err
	}
	switch call.Spec.Name {
	case shellTool:
		line, err := args.text("command")
		if err != nil {
			return nil, err
		}
		return readLine(line), nil
	case "read_file", "list_dir", "search", "edit_file", "write_file":
		name, err := args.text("path")
		if err != nil {
			return nil, err
		}
		name = path.Clean(name)
		p := part{kind: file, tool: call.Spec.Name, text: name}
		p.forms = pathForms(file, call.Spec.Name, name)
		return []part{p}, nil
	}
	var compact bytes.Buffer
	if len(call.Args) > 0 {
		if err := json.Compact(&compact, call.Args); err != nil {
			return nil, errArgs
		}
	}
	p := part{kind: arguments, tool: call.Spec.Name, text: compact.String()}
	p.forms = append(p.forms, certain(arguments, call.Spec.Name, p.text))
	for _, s := range stringsIn(call.Args) {
		p.forms = append(p.forms, certain(arguments, call.Spec.Name, s))
	}
	return []part{p}, nil
}

// pathForms returns a cleaned path as it is, and as it would be in the
// workspace.
func pathForms(k kind, tool, name string) []form {
	forms := []form{certain(k, tool, name)}
	in := strings.TrimPrefix(name, "/")
	for strings.HasPrefix(in, "../") {
		in = in[len("../"):]
	}
	if in != name && in != "" {
		forms = append(forms, certain(k, tool, in))
	}
	return forms
}

var errArgs = errors.New("its arguments cannot be read")

// fields are the arguments of a call by name.
type fields map[string]json.RawMessage

// readArgs reads an object. Names that differ only in case are refused: which
// of them counts depends on who reads.
func readArgs(data json.RawMessage) (fields, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return fields{}, nil
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, errArgs
	}
	args, seen := fields{}, map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		name, ok := t.(string)
		if err != nil || !ok {
			return nil, errArgs
		}
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return nil, errArgs
		}
		fold := strings.ToLower(strings.ToUpper(name)) // as encoding/json: K and the Kelvin sign are one
		if seen[fold] {
			return nil, errors.New("its arguments name something twice")
		}
		seen[fold] = true
		args[name] = value
	}
	if _, err := dec.Token(); err != nil {
		return nil, errArgs
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errArgs
	}
	return args, nil
}

// text returns an argument that is text; one that is not there is empty.
func (f fields) text(name string) (string, error) {
	raw, ok := f[name]
	if !ok {
		for other := range f {
			if strings.EqualFold(other, name) {
				return "", errArgs
			}
		}
		return "", nil
	}
	var s string
	if err := json.Unmarshal(raw, &s); err != nil {
		return "", errArgs
	}
	return s, nil
}

// stringsIn returns all text in arguments, however deep.
func stringsIn(data json.RawMessage) []string {
	var out []string
	dec := json.NewDecoder(bytes.NewReader(data))
	for {
		t, err := dec.Token()
		if err != nil {
			return out
		}
		if s, ok := t.(string); ok && s != "" {
			out = append(out, s)
		}
	}
}
