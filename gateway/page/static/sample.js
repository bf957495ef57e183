// A long text with one fact in the middle that the question at its end asks for.

const HALLS = ["north", "south", "east", "west"];

export function sampleText(lines = 60) {
  const report = Array.from({ length: lines }, (_, index) =>
    index === Math.floor(lines / 2)
      ? "Note: the spare key of the pump room hangs behind the blue door."
      : `Shift ${index + 1}: the pump in the ${HALLS[index % HALLS.length]} hall ran at ${50 + ((index * 7) % 40)} percent and no valve was touched.`);
  return `${report.join("\n")}\n\nWhere does the spare key of the pump room hang?`;
}
