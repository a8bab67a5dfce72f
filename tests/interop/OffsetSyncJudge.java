import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.HexFormat;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.TopicPartition;

/** Java's own OffsetSyncStore, told what to do line by line; answers to "ask" go to its output. */
public class OffsetSyncJudge {
    public static void main(String[] arguments) throws Exception {
        Class<?> type = Class.forName("org.apache.kafka.connect.mirror.OffsetSyncStore");
        Constructor<?> make = type.getDeclaredConstructor();
        make.setAccessible(true);
        Method take = type.getDeclaredMethod("handleRecord", ConsumerRecord.class);
        take.setAccessible(true);
        Method translate = type.getMethod("translateDownstream", String.class, TopicPartition.class, long.class);
        Object store = null;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "new" -> {
                    store = make.newInstance();
                    set(type, store, "initializationMustReadToEnd", Boolean.parseBoolean(words[1]));
                }
                case "sync" -> take.invoke(store, new ConsumerRecord<>("syncs", 0, 0L, bytes(words[1]), bytes(words[2])));
                case "end" -> set(type, store, "readToEnd", true);
                case "ask" -> System.out.println(translate.invoke(
                    store, "g", new TopicPartition(words[1], Integer.parseInt(words[2])), Long.parseLong(words[3])));
                default -> throw new IllegalArgumentException(line);
            }
        }
    }

    private static byte[] bytes(String hex) {
        return HexFormat.of().parseHex(hex);
    }

    private static void set(Class<?> type, Object store, String name, boolean value) throws Exception {
        Field field = type.getDeclaredField(name);
        field.setAccessible(true);
        field.setBoolean(store, value);
    }
}
