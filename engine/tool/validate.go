package tool

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// maxArgs bounds the arguments of one call, in bytes.
const maxArgs = 4 << 20

// Check validates the arguments of a call of t: with the tool's own [Validator],
// as those made by [New] have, or one made for this call.
func Check(t Tool, args json.RawMessage) (json.RawMessage, error) {
	if v, ok := t.(interface {
		Validate(json.RawMessage) (json.RawMessage, error)
	}); ok {
		return v.Validate(args)
	}
	return Validate(t.Spec(), args)
}

// Validate checks the arguments of a call as a [Validator] does that is made for
// this one call, which takes a hundred times as long.
func Validate(spec Spec, args json.RawMessage) (json.RawMessage, error) {
	v, err := NewValidator(spec)
	if err != nil {
		return nil, err
	}
	return v.Validate(args)
}

// Validator checks arguments against a tool's schema, and mends what models
// commonly get wrong where there is only one thing it can mean. It may be used
// from several goroutines.
type Validator struct {
	name     string
	schema   *jsonschema.Schema
	resolved *jsonschema.Resolved
}

// NewValidator compiles the schema of a tool.
func NewValidator(spec Spec) (*Validator, error) {
	var s jsonschema.Schema
	if err := json.Unmarshal(spec.Schema, &s); err != nil {
		return nil, fmt.Errorf("schema of tool %s: %w", spec.Name, err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("schema of tool %s: %w", spec.Name, err)
	}
	return &Validator{name: spec.Name, schema: &s, resolved: r}, nil
}

// Validate returns the arguments as they are to be used. Mended are: an object
// inside a string, numbers and truth values as strings and the reverse, one value
// where a list is wanted, null for something optional, and a required field under
// a wrong name. The text of an error is for the model.
func (v *Validator) Validate(args json.RawMessage) (json.RawMessage, error) {
	obj, changed, err := v.object(args)
	if err != nil {
		return nil, err
	}
	changed = v.rename(obj) || changed
	for _, name := range slices.Sorted(maps.Keys(obj)) {
		s, known := v.schema.Properties[name]
		if !known {
			continue
		}
		if kindOf(obj[name]) == "null" && !accepts(s, "null") && len(types(s)) > 0 {
			delete(obj, name)
			changed = true
			continue
		}
		if fixed, ok := mend(s, obj[name]); ok {
			obj[name] = fixed
			changed = true
		}
	}
	if err := v.problems(obj); err != nil {
		return nil, err
	}
	out := json.RawMessage(bytes.TrimSpace(args))
	if changed {
		if out, err = encode(obj); err != nil {
			return nil, v.fault("they cannot be written as JSON")
		}
	}
	var instance any
	if err := json.Unmarshal(out, &instance); err != nil {
		return nil, v.fault("they are not valid JSON: %v", err)
	}
	if err := v.resolved.Validate(instance); err != nil {
		// The library names the schema and its parts first; the fault is last.
		text := strings.TrimPrefix(err.Error(), "validating root: ")
		return nil, v.fault("%s", strings.ReplaceAll(text, "validating /properties/", "field "))
	}
	return out, nil
}

// fault is an error with what the arguments should be.
func (v *Validator) fault(format string, args ...any) error {
	text := fmt.Sprintf("The arguments of %s are wrong: %s.", v.name, strings.TrimSuffix(clipText(fmt.Sprintf(format, args...), 500), "."))
	if f := v.fields(); f != "" {
		text += " The fields are: " + f + "."
	} else if len(v.schema.Properties) == 0 && !v.open() {
		text += " It takes none: send {}."
	}
	return errors.New(text)
}

// fields lists what may be given.
func (v *Validator) fields() string {
	var out []string
	for _, name := range propertyNames(v.schema) {
		text := strings.Join(types(v.schema.Properties[name]), " or ")
		if slices.Contains(v.schema.Required, name) {
			text = strings.TrimPrefix(text+", required", ", ")
		}
		if text != "" {
			text = " (" + text + ")"
		}
		out = append(out, name+text)
	}
	return clipText(strings.Join(out, ", "), 1000)
}

// propertyNames are the fields of a schema, the required ones first.
func propertyNames(s *jsonschema.Schema) []string {
	names := slices.Sorted(maps.Keys(s.Properties))
	slices.SortStableFunc(names, func(a, b string) int {
		ra, rb := slices.Contains(s.Required, a), slices.Contains(s.Required, b)
		switch {
		case ra == rb:
			return 0
		case ra:
			return -1
		}
		return 1
	})
	return names
}

// object reads the arguments, which must be one JSON object.
func (v *Validator) object(args json.RawMessage) (map[string]json.RawMessage, bool, error) {
	if len(args) > maxArgs {
		return nil, false, v.fault("they have %d bytes, more than %d", len(args), maxArgs)
	}
	text, changed := bytes.TrimSpace(args), false
	for range 2 { // some models write JSON into a string, a few do it twice
		var inner string
		if kindOf(text) != "string" || json.Unmarshal(text, &inner) != nil {
			break
		}
		text, changed = bytes.TrimSpace([]byte(inner)), true
	}
	if len(text) == 0 || string(text) == "null" {
		return map[string]json.RawMessage{}, true, nil
	}
	obj := map[string]json.RawMessage{}
	err := json.Unmarshal(text, &obj)
	if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
		return nil, false, v.fault("they are not valid JSON: %v, at byte %d of %d; send one JSON object", syntax, syntax.Offset, len(text))
	}
	if err != nil {
		return nil, false, v.fault("they are a JSON %s; send one JSON object", kindOf(text))
	}
	return obj, changed, nil
}

// open reports whether fields that the schema does not name are taken.
func (v *Validator) open() bool {
	a := v.schema.AdditionalProperties
	return a == nil || a.Not == nil || len(v.schema.PatternProperties) > 0
}

func (v *Validator) unknown(obj map[string]json.RawMessage) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(obj)) {
		if _, ok := v.schema.Properties[name]; !ok {
			out = append(out, name)
		}
	}
	return out
}

func (v *Validator) missing(obj map[string]json.RawMessage) []string {
	var out []string
	for _, name := range v.schema.Required {
		if _, ok := obj[name]; !ok {
			out = append(out, name)
		}
	}
	return out
}

// rename gives the one field that is not known the name of the one that is
// missing, if its value could be that.
func (v *Validator) rename(obj map[string]json.RawMessage) bool {
	unknown, missing := v.unknown(obj), v.missing(obj)
	if v.open() || len(unknown) != 1 || len(missing) != 1 {
		return false
	}
	s, value := v.schema.Properties[missing[0]], obj[unknown[0]]
	if s == nil || !accepts(s, kindOf(value)) {
		return false
	}
	obj[missing[0]] = value
	delete(obj, unknown[0])
	return true
}

// problems reports what is missing, unknown, or of the wrong type.
func (v *Validator) problems(obj map[string]json.RawMessage) error {
	var all []string
	for _, name := range v.missing(obj) {
		all = append(all, fmt.Sprintf("field %q is missing", name))
	}
	if !v.open() {
		for _, name := range v.unknown(obj) {
			all = append(all, fmt.Sprintf("there is no field %q", clipText(name, 60)))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(obj)) {
		s := v.schema.Properties[name]
		if s == nil || accepts(s, kindOf(obj[name])) {
			continue
		}
		all = append(all, fmt.Sprintf("field %q must be %s, not %s", name, article(strings.Join(types(s), " or ")), article(kindOf(obj[name]))))
	}
	if len(all) == 0 {
		return nil
	}
	return v.fault("%s", strings.Join(all, "; "))
}

func article(noun string) string {
	switch {
	case noun == "null":
		return noun
	case strings.ContainsRune("aeiou", rune(noun[0])):
		return "an " + noun
	}
	return "a " + noun
}

// types are the types a schema names itself; none means any, or that it is more
// complicated.
func types(s *jsonschema.Schema) []string {
	if s.Type != "" {
		return []string{s.Type}
	}
	return s.Types
}

// accepts reports whether a value of the kind can be of the schema's types. A
// number may be an integer.
func accepts(s *jsonschema.Schema, kind string) bool {
	ts := types(s)
	return len(ts) == 0 || slices.Contains(ts, kind) || kind == "number" && slices.Contains(ts, "integer")
}

// kindOf returns the JSON type of a value by its first byte.
func kindOf(raw []byte) string {
	raw = bytes.TrimLeft(raw, " \t\r\n")
	if len(raw) == 0 {
		return "null"
	}
	switch raw[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	return "number"
}

// mend returns the value that raw was meant to be, if it is not of the schema's
// types as it is.
func mend(s *jsonschema.Schema, raw json.RawMessage) (json.RawMessage, bool) {
	kind := kindOf(raw)
	if accepts(s, kind) {
		switch {
		case kind == "number" && !slices.Contains(types(s), "number") && slices.Contains(types(s), "integer"):
			return mendInteger(string(raw))
		case kind == "array" && s.Items != nil:
			return mendArray(s.Items, raw)
		case kind == "object" && len(s.Properties) > 0:
			return mendObject(s, raw)
		}
		return raw, false
	}
	if kind == "string" {
		var text string
		if json.Unmarshal(raw, &text) != nil {
			return raw, false
		}
		if out, ok := mendString(s, text); ok {
			return out, true
		}
	}
	if (kind == "number" || kind == "boolean") && accepts(s, "string") {
		return json.RawMessage(strconv.Quote(string(raw))), true
	}
	if kind != "null" && kind != "array" && accepts(s, "array") && s.Items != nil {
		item := raw
		if fixed, ok := mend(s.Items, raw); ok {
			item = fixed
		}
		if accepts(s.Items, kindOf(item)) {
			return json.RawMessage("[" + string(item) + "]"), true
		}
	}
	return raw, false
}

// mendString reads a value of another type out of a string.
func mendString(s *jsonschema.Schema, text string) (json.RawMessage, bool) {
	text = strings.TrimSpace(text)
	if low := strings.ToLower(text); low == "true" || low == "false" {
		text = low
	}
	kind := kindOf([]byte(text))
	if text == "" || kind == "string" || kind == "null" || !accepts(s, kind) || !json.Valid([]byte(text)) {
		return nil, false
	}
	raw := json.RawMessage(text)
	if fixed, ok := mend(s, raw); ok {
		raw = fixed
	}
	return raw, true
}

// mendInteger writes 10.0 and 1e3 as what they are.
func mendInteger(text string) (json.RawMessage, bool) {
	if !strings.ContainsAny(text, ".eE") {
		return json.RawMessage(text), false
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return json.RawMessage(text), false
	}
	return strconv.AppendInt(nil, int64(f), 10), true
}

func mendArray(items *jsonschema.Schema, raw json.RawMessage) (json.RawMessage, bool) {
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return raw, false
	}
	changed := false
	for i := range list {
		if fixed, ok := mend(items, list[i]); ok {
			list[i], changed = fixed, true
		}
	}
	return reencode(raw, list, changed)
}

func mendObject(s *jsonschema.Schema, raw json.RawMessage) (json.RawMessage, bool) {
	var obj map[string]json.RawMessage
	if json.Unmarshal(raw, &obj) != nil {
		return raw, false
	}
	changed := false
	for name, value := range obj {
		p, ok := s.Properties[name]
		switch {
		case !ok:
		case kindOf(value) == "null" && !accepts(p, "null"):
			delete(obj, name)
			changed = true
		default:
			if fixed, ok := mend(p, value); ok {
				obj[name], changed = fixed, true
			}
		}
	}
	return reencode(raw, obj, changed)
}

func reencode(raw json.RawMessage, value any, changed bool) (json.RawMessage, bool) {
	if !changed {
		return raw, false
	}
	out, err := encode(value)
	if err != nil {
		return raw, false
	}
	return out, true
}

// encode writes JSON with <, > and & as they are: people read it before they
// allow it.
func encode(value any) (json.RawMessage, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(b.Bytes()), nil
}
